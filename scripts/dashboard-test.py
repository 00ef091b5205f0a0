#!/usr/bin/env python3
"""Checks packaging/watch against a real Prometheus: each query of the Grafana dashboard is asked and has to give something, the alert rules
are loaded, nothing is raised while all is well, and a volume whose SSD fails raises its alert.

    scripts/dashboard-test.py        needs root, /dev/fuse, and Debian's package prometheus (scripts/install-deps.sh --long)

SHALE is the program (default: this tree's release build). The last line is "N passed, N failed"."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILT = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release")
SHALE = os.environ.get("SHALE", os.path.join(BUILT, "shale"))
DASHBOARD = os.path.join(ROOT, "packaging/watch/grafana-dashboard.json")
RULES = os.path.join(ROOT, "packaging/watch/prometheus-rules.yml")
# A volume of each kind, since each has tiers of its own to say something of.
VOLUMES = {
    "tiers": ["--nvm", "{d}/nvm-tiers:64M", "--ssd", "{d}/tiers.ssd:128M", "--hdd", "{d}/tiers.hdd:128M"],
    "staged": ["--ssd", "{d}/staged.ssd:256M"],
    "buffered": ["--nvm", "{d}/nvm-buffered:64M", "--durability", "buffered"],
}
passed = failed = 0


def check(what, right, said=""):
    global passed, failed
    passed, failed = passed + bool(right), failed + (not right)
    if not right:
        print(f"FAILED  {what}: {said}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def shale(*arguments):
    return subprocess.run([SHALE, *arguments], check=True, capture_output=True, text=True).stdout


def panels_of(dashboard):
    return [p for p in dashboard["panels"] if p["type"] != "row"]


def check_form(dashboard):
    """What Grafana's schema of dashboards asks for, of the parts that are used."""
    for name, kind in [("title", str), ("uid", str), ("schemaVersion", int), ("panels", list), ("templating", dict), ("time", dict)]:
        check(f"dashboard: {name}", isinstance(dashboard.get(name), kind), dashboard.get(name))
    ids = [p["id"] for p in dashboard["panels"]]
    check("dashboard: each panel has a number of its own", len(ids) == len(set(ids)), ids)
    taken = set()
    for panel in dashboard["panels"]:
        g = panel["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        check(f"{panel['title']}: its place", g["x"] + g["w"] <= 24 and not cells & taken, g)
        taken |= cells
    for panel in panels_of(dashboard):
        letters = [t["refId"] for t in panel["targets"]]
        check(f"{panel['title']}: its queries", letters and len(letters) == len(set(letters)), letters)
        check(f"{panel['title']}: its type", panel["type"] in ("stat", "timeseries", "heatmap"), panel["type"])


class Prometheus:
    def __init__(self, d, targets):
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [RULES],
            "scrape_configs": [{"job_name": "shale", "static_configs": [{"targets": targets}]}],
        }
        path = f"{d}/prometheus.yml"
        with open(path, "w") as f:
            json.dump(config, f)  # JSON is YAML.
        done = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True)
        check("promtool check config, with the rules", done.returncode == 0, done.stdout + done.stderr)
        self.log = open(f"{d}/prometheus.log", "w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={d}/data", f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=self.log, stderr=subprocess.STDOUT)

    def ask(self, what, **arguments):
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)
        except OSError as error:
            return {"status": "error", "error": str(error)}

    def until(self, seconds, true):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if true():
                return True
            time.sleep(0.3)
        return False

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def run(d):
    with open(DASHBOARD) as f:
        dashboard = json.load(f)
    check_form(dashboard)
    targets, mounts = [], {}
    for name, media in VOLUMES.items():
        port, mount = free_port(), f"{d}/{name}"
        os.mkdir(mount)
        shale("mkfs", f"{d}/{name}.toml", *[word.format(d=d) for word in media])
        shale("mount", f"{d}/{name}.toml", mount, "--metrics", f"127.0.0.1:{port}")
        mounts[name] = mount
        targets.append(f"127.0.0.1:{port}")
    prometheus = Prometheus(d, targets)
    try:
        for n in range(8):
            for mount in mounts.values():
                with open(f"{mount}/file-{n}", "wb") as f:
                    f.write(os.urandom(1 << 20))
                    os.fsync(f.fileno())
            time.sleep(1)
        values = {"$volume": ".*", "$__rate_interval": "5s"}
        for panel in panels_of(dashboard):
            for target in panel["targets"]:
                query = re.sub(r"\$\w+", lambda m: values[m.group()], target["expr"])
                answer = prometheus.ask("query", query=query)
                rows = answer.get("data", {}).get("result", [])
                check(f"{panel['title']} {target['refId']}", answer["status"] == "success" and rows, f"{query}: {answer}")
                shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                lacking = shown - set().union(*[row["metric"] for row in rows]) if rows else shown
                check(f"{panel['title']} {target['refId']}: its legend", not lacking, f"no label {lacking}: {rows[:1]}")
        rules = prometheus.ask("rules")
        states = [rule["health"] for group in rules["data"]["groups"] for rule in group["rules"]]
        check("the rules are evaluated", len(states) == 7 and set(states) == {"ok"}, rules)
        firing = prometheus.ask("alerts")["data"]["alerts"]
        check("nothing is raised while all is well", not [a for a in firing if a["state"] == "firing"], firing)

        # The SSD of a volume without NVM is cut off: the alert waits a minute before it is sent.
        os.truncate(f"{d}/staged.ssd", 1 << 20)
        with open(f"{mounts['staged']}/lost", "wb") as f:
            f.write(b"x" * 4096)
            try:
                os.fsync(f.fileno())
            except OSError:
                pass

        def raised():
            alerts = prometheus.ask("alerts").get("data", {}).get("alerts", [])
            return any(a["labels"]["alertname"] == "ShaleDeviceFailing" for a in alerts)

        check("an SSD that fails raises its alert", prometheus.until(20, raised), prometheus.ask("alerts"))
    finally:
        prometheus.end()
        for mount in mounts.values():
            subprocess.run([SHALE, "umount", mount], capture_output=True)
            subprocess.run(["umount", "-l", mount], capture_output=True)


def main():
    lacking = [p for p in ("prometheus", "promtool") if not shutil.which(p)]
    if lacking:
        sys.exit(f"dashboard-test: {', '.join(lacking)} is missing: scripts/install-deps.sh --long")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="shale-dashboard.") as d:
        run(d)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


main()
