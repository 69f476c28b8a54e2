"""Measurements that are commands: how good a model is as served, and where a step's time goes."""
