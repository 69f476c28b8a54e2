"""Certificates for tests, made by the ``openssl`` command."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(directory: Path, name: str, password: str | None = None) -> tuple[str, str]:
    """(certificate, key) of 127.0.0.1, which is its own authority."""
    certificate, key = str(directory / f"{name}.pem"), str(directory / f"{name}.key")
    protect = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            *curve,
            *protect,
            *subject,
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
