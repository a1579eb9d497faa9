"""The hosts of these tests are hosts: names, addresses, loopbacks and disks of their own."""

import pytest
from host_network import missing, network

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def told(host, command: str) -> str:
    return host.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.strip()


def test_hosts_reach_each_other_and_share_no_loopback(tmp_path):
    local = tmp_path / "disk"
    with network(2, names=("algo-1", "algo-2"), local=local) as hosts:
        assert [told(host, "hostname") for host in hosts] == ["algo-1", "algo-2"]
        assert told(hosts[0], "getent hosts algo-2").split() == [hosts[1].address, "algo-2"]
        told(hosts[0], f"echo here >{local}/file; echo shared >{tmp_path}/file")
        assert told(hosts[1], f"ls {local}; cat {tmp_path}/file") == "shared"
        listen = "import socket; s = socket.create_server((ADDRESS, 7000)); print('up', flush=True); s.accept()"
        ask = "import socket; socket.create_connection(('algo-1', 7000), 5)"
        for address, reached in (("127.0.0.1", False), (hosts[0].address, True)):
            server = hosts[0].start(["python3", "-c", listen.replace("ADDRESS", repr(address))], stdout=-1, text=True)
            assert server.stdout.readline() == "up\n"
            done = hosts[1].run(["python3", "-c", ask], capture_output=True, check=False)
            assert (done.returncode == 0) == reached
            server.kill()
            server.wait()
        sleeper = hosts[1].start(["sleep", "600"])
        assert hosts[1].processes() == [sleeper.pid]
        hosts[1].power_off()
        assert sleeper.wait() == -9 and hosts[1].processes() == []
