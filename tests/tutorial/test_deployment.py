"""The files of docs/deployment.md: they are well formed, and their commands are those of the package."""

from __future__ import annotations

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
from django.core.management import load_command_class

from django_delayq.api.urls import ROUTES

from ..support.redis_box import RedisBox
from ..testing.project import ROOT

PAGE = (ROOT / "docs" / "deployment.md").read_text()
COMMAND = re.compile(r"manage\.py (delayq_\w+)([^`\n]*)")


def blocks(language: str) -> list[str]:
    """Return the blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Return the commands with their options, from shell lines and from lists of words."""
    return COMMAND.findall(re.sub(r'", "', " ", PAGE).replace('"]', ""))


@pytest.mark.parametrize(("name", "options"), commands(), ids=lambda part: part.strip())
def test_every_command_has_the_options_that_the_page_gives_it(name: str, options: str) -> None:
    words = shlex.split(options.split(",")[0])
    load_command_class("django_delayq", name).create_parser("manage.py", name).parse_args(words)


def test_the_page_shows_the_worker_in_each_way() -> None:
    assert [name for name, options in commands() if "--grace" in options] == ["delayq_worker"] * 4


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.split(":")[0])
def test_compose_and_kubernetes_are_well_formed(block: str) -> None:
    parts = list(yaml.safe_load_all(block))

    assert all("services" in part or {"apiVersion", "kind", "metadata", "spec"} <= part.keys() for part in parts)


def test_compose_names_only_what_it_declares() -> None:
    (compose,) = (yaml.safe_load(block) for block in blocks("yaml") if "services:" in block)
    services = compose["services"]
    mounted = {one.partition(":")[0] for service in services.values() for one in service.get("volumes", ())}

    assert all({"image", "build"} & service.keys() for service in services.values())
    assert {name for service in services.values() for name in service.get("depends_on", ())} <= services.keys()
    assert mounted == compose["volumes"].keys()


def test_the_pods_of_kubernetes_are_selected_and_probed() -> None:
    deployments = [part for block in blocks("yaml") if "apiVersion" in block for part in yaml.safe_load_all(block)]

    assert [part["metadata"]["name"] for part in deployments] == ["booking-worker", "booking-web"]
    for part in deployments:
        spec = part["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        for container in spec["template"]["spec"]["containers"]:
            asked = [container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe") if "ports" in container]
            assert all(probe["path"].removeprefix("/delayq/") in ROUTES for probe in asked)
            assert all(probe["port"] == container["ports"][0]["containerPort"] for probe in asked)


def test_the_image_runs_the_worker_as_an_ordinary_user_and_gets_its_signals() -> None:
    (text,) = blocks("dockerfile")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    instructions = [name for name, _ in lines]
    command = json.loads(lines[-1][1])

    assert instructions == ["FROM", "ENV", "RUN", "WORKDIR", "COPY", "RUN", "COPY", "USER", "CMD"]
    assert re.fullmatch(r"python:3\.\d+-slim", lines[0][1])
    assert f"useradd --create-home {lines[-2][1]}" in lines[2][1]
    assert command[:3] == ["python", "manage.py", "delayq_worker"]


def test_supervisord_gets_options_that_it_has() -> None:
    (text,) = (block for block in blocks("ini") if block.startswith("[program:"))
    config = configparser.RawConfigParser(inline_comment_prefixes=(";",))
    config.read_string(text)
    program = dict(config["program:delayq-worker"])

    known = "command directory user environment autorestart stopsignal stopwaitsecs killasgroup"
    assert program.keys() == set(known.split())
    assert (program["stopsignal"], program["killasgroup"]) == ("TERM", "true")


def test_redis_takes_the_settings(tmp_path: Path) -> None:
    (text,) = (block for block in blocks("ini") if "appendonly" in block)
    settings = dict(line.split() for line in text.splitlines() if line and not line.startswith("#"))
    command = re.search(r"command: redis-server (.*)", PAGE)
    assert command is not None
    of_compose = dict(zip(*[iter(command[1].split())] * 2, strict=True))

    rules = tmp_path / "users.acl"
    # Of the users of the guide that of the jobs has a secret of one's own, and the test asks as the usual one.
    rules.write_text((ROOT / "docs" / "users.acl").read_text() + "user default on nopass ~* &* +@all\n")
    options: dict[str, Any] = {name.replace("-", "_"): value for name, value in settings.items()}
    with RedisBox(**{**options, "aclfile": rules}) as box:
        held = box.client().config_get("*")
        assert held["appendonly"] == "yes"
        assert held["maxmemory-policy"] == "noeviction"
        assert held["maxmemory"] == str(1 << 30)
    assert {name.removeprefix("--") for name in of_compose} == settings.keys() - {"tcp-keepalive", "aclfile"}
    assert of_compose["--maxmemory-policy"] == settings["maxmemory-policy"]


def test_processes_are_given_longer_than_their_grace() -> None:
    (grace,) = {int(found) for found in re.findall(r'--grace"?,? "?(\d+)', PAGE)}
    limits = re.findall(
        r"(?:TimeoutStopSec=|stopwaitsecs=|stop_grace_period: |terminationGracePeriodSeconds: )(\d+)", PAGE
    )

    assert len(limits) == 4
    assert all(int(limit) > grace for limit in limits)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = [block for block in blocks("ini") if block.startswith("[Unit]")]
    for number, unit in enumerate(units):
        suffix = "timer" if "[Timer]" in unit else "service"
        if suffix == "service":
            unit = re.sub(r"/srv/booking/\.venv/bin/python", "/bin/true", unit).replace("/srv/booking", "/")
        (tmp_path / f"unit{number}.{suffix}").write_text(unit)
    (tmp_path / "unit2.service").write_text((tmp_path / "unit1.service").read_text())

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert len(units) == 3
    assert done.returncode == 0, done.stderr
    assert "unit" not in done.stderr, done.stderr
