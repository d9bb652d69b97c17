"""Network namespaces as hosts of one machine, each with a link of limited speed to a switch.

    NAME-0 [eth0] ════ data0 ┐                  the data network: messages of ranks; limited, counted, cut
    NAME-1 [eth0] ════ data1 ┴ [data]
    NAME-0 [control] ─ control0 ┐               the control network: for the launcher; never limited or cut, so
    NAME-1 [control] ─ control1 ┴ [control]     that it can end the ranks of a host whose data link is gone

Both bridges and the switch's ends of all links are in the namespace NAME-switch, and nothing is in the machine's own network. So
several clusters may use the same addresses, and everything disappears with its namespace.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError

NAMESPACES = Path("/run/netns")
CONTROL_SUBNET = ipaddress.IPv4Network("169.254.0.0/16")
LINK = "eth0"  # the interface of a host whose rate is limited
UNLIMITED = "unlimited"
# Header bytes of one TCP segment: Ethernet, IPv4, and TCP with time stamps.
HEADER_BYTES_PER_PACKET = 14 + 20 + 32
_UNITS_BITS_PER_SECOND = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# Bytes that may leave at once after a pause, and longest time that a packet may queue. A message below the burst sees no limit.
_BUCKET = ("burst", "512kb", "latency", "100ms")
_KILL_SECONDS = 10.0
_KEPT = "kept"


def check_rate(text: str) -> str:
    """Return a link's speed as ``tc`` writes it, or ``unlimited``. Raises HpcgnnError for anything else."""
    if text != UNLIMITED and not re.fullmatch(r"[1-9]\d*(kbit|mbit|gbit)", text):
        raise HpcgnnError(f"{text} is not a rate such as 100mbit or 1gbit, or {UNLIMITED}")
    return text


class Network:
    """The cluster called ``name``, which may or may not exist."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.switch = f"{name}-switch"

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Return whether any part of the cluster exists: the switch is made first and removed last."""
        return (NAMESPACES / self.switch).exists()

    @property
    def is_kept(self) -> bool:
        """Return whether the cluster is complete, and stays after the command that has made it."""
        return self.exists and any(link.get("ifalias") == _KEPT for link in _links(self.switch))

    @property
    def hosts(self) -> list[str]:
        """The hosts' names, which are those of their namespaces."""
        numbers = (path.name.removeprefix(f"{self.name}-") for path in NAMESPACES.glob(f"{self.name}-*"))
        return [f"{self.name}-{number}" for number in sorted(filter(str.isdecimal, numbers), key=int)]

    def index_of(self, host: str) -> int:
        """The number of a host that is given by name or by number."""
        for index, known in enumerate(self.hosts):
            if host in (known, str(index)):
                return index
        raise HpcgnnError(f"cluster {self.name} has no host {host}: its hosts are {', '.join(self.hosts)}")

    def address(self, host: str) -> str:
        """The host's address in the data network, with the length of its prefix."""
        (link,) = json.loads(_ip("-j", "-n", host, "address", "show", LINK))
        return "{local}/{prefixlen}".format(**link["addr_info"][0])

    def rate(self) -> str:
        """The speed of the links."""
        for limiter in json.loads(_tc("-j", "-n", self.hosts[0], "qdisc", "show", "dev", LINK)):
            if limiter["kind"] == "tbf":
                bits_per_second = limiter["options"]["rate"] * 8
                units = [unit for unit in _UNITS_BITS_PER_SECOND.items() if bits_per_second % unit[1] == 0]
                name, size = max(units, key=lambda unit: unit[1])
                return f"{bits_per_second // size}{name}"
        return UNLIMITED

    def is_cut(self, host: str) -> bool:
        """Return whether the host's data link is cut."""
        port = f"data{self.index_of(host)}"
        return next("UP" not in link["flags"] for link in _links(self.switch) if link["ifname"] == port)

    def counters(self) -> dict[str, dict[str, int]]:
        """The packets, bytes and payload bytes that each host's data interface has counted since it was made.

        The kernel gives the interface packets of up to 64 KiB of one connection, with one header each. A real network card would
        cut them into pieces with a header each. The payload does not depend on that.
        """
        counted = {}
        for host in self.hosts:
            found = next(link["stats64"] for link in _links(host) if link["ifname"] == LINK)
            own = {f"{way}_{unit}": found[way][unit] for way in ("tx", "rx") for unit in ("packets", "bytes")}
            for way in ("tx", "rx"):
                headers = own[f"{way}_packets"] * HEADER_BYTES_PER_PACKET
                own[f"{way}_payload_bytes"] = max(own[f"{way}_bytes"] - headers, 0)
            counted[host] = own
        return counted

    def processes(self, mark: str | None = None) -> list[int]:
        """The processes on the hosts and the switch; with ``mark``, those with that text in their environment."""
        own = set()
        for namespace in (*self.hosts, self.switch):
            with contextlib.suppress(FileNotFoundError):
                own.add((NAMESPACES / namespace).stat().st_ino)
        return [pid for pid, inode in _network_namespaces() if inode in own and (mark is None or _has(pid, mark))]

    # -- changes ------------------------------------------------------------------------------------------------------

    def build(self, host_count: int, subnet: ipaddress.IPv4Network, rate: str, check: Callable[[], None]) -> None:
        """Make the hosts. Calls ``check``, which may raise, before each; after a failure, :meth:`remove` removes the remains."""
        if strangers := self.hosts:
            raise HpcgnnError(
                f"{', '.join(strangers)} are network namespaces, but not hosts of a virtual cluster: choose another --name"
            )
        _ip("netns", "add", self.switch)
        for bridge in ("data", "control"):
            _ip("-n", self.switch, "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
            _raise_link(self.switch, bridge)
        _raise_link(self.switch, "lo")
        _ip("-n", self.switch, "address", "add", f"{CONTROL_SUBNET[-2]}/{CONTROL_SUBNET.prefixlen}", "dev", "control")
        for index in range(host_count):
            check()
            _ip("netns", "add", f"{self.name}-{index}")
            _raise_link(f"{self.name}-{index}", "lo")
            self._connect(index, "control", "control", f"{CONTROL_SUBNET[index + 1]}/{CONTROL_SUBNET.prefixlen}")
            self._connect(index, "data", LINK, f"{subnet[index + 1]}/{subnet.prefixlen}")
        check()
        self.set_rate(rate)

    def _connect(self, index: int, bridge: str, interface: str, address: str) -> None:
        host, port = f"{self.name}-{index}", f"{bridge}{index}"
        _ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", host)
        _ip("-n", self.switch, "link", "set", port, "master", bridge)
        _ip("-n", host, "address", "add", address, "dev", interface)
        _raise_link(self.switch, port)
        _raise_link(host, interface)

    def keep(self) -> None:
        """Mark the cluster as complete, and as one that stays."""
        _ip("-n", self.switch, "link", "set", "control", "alias", _KEPT)

    def set_rate(self, rate: str) -> None:
        """Limit every data link, in both directions."""
        limiter = ("noqueue",) if rate == UNLIMITED else ("tbf", "rate", rate, *_BUCKET)
        for index, host in enumerate(self.hosts):
            _tc("-n", self.switch, "qdisc", "replace", "dev", f"data{index}", "root", *limiter)
            _tc("-n", host, "qdisc", "replace", "dev", LINK, "root", *limiter)

    def set_link(self, host: str, up: bool) -> None:
        """Cut the host's data link, or restore it. As with a pulled cable, TCP gets no error and no packets."""
        _ip("-n", self.switch, "link", "set", f"data{self.index_of(host)}", "up" if up else "down")

    def kill(self, mark: str | None = None) -> None:
        """End :meth:`processes` at once, and wait until they are gone."""
        deadline = time.monotonic() + _KILL_SECONDS
        while pids := self.processes(mark):
            if time.monotonic() > deadline:
                said = f"processes {', '.join(map(str, pids))} on cluster {self.name}"
                raise HpcgnnError(f"{said} cannot be killed: end them first")
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def remove(self) -> None:
        """Remove the cluster, as far as it exists, and the processes on it."""
        if not self.exists:
            return
        self.kill()
        for namespace in (*self.hosts, self.switch):
            _ip("netns", "delete", namespace)


def _raise_link(namespace: str, interface: str) -> None:
    # Without an IPv6 address, an interface sends only packets of processes, which keeps the counters exact.
    quiet = () if interface == "lo" else ("addrgenmode", "none")
    _ip("-n", namespace, "link", "set", interface, *quiet, "up")


def _links(namespace: str) -> list[dict[str, Any]]:
    return json.loads(_ip("-j", "-s", "-n", namespace, "link", "show"))


def _network_namespaces() -> Iterator[tuple[int, int]]:
    """Every process with the inode of its network namespace."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            yield int(entry.name), (entry / "ns" / "net").stat().st_ino


def _has(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in (Path("/proc") / str(pid) / "environ").read_bytes()
    except OSError:
        return False


def _run(*command: str) -> str:
    # In a process group of its own, which Ctrl-C does not reach, so that no change is interrupted.
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, process_group=0
    )
    if result.returncode != 0:
        reason = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
        raise HpcgnnError(f"`{' '.join(command)}` failed: {reason}")
    return result.stdout


_ip, _tc = functools.partial(_run, "ip"), functools.partial(_run, "tc")
