"""Simulated machines execute their payload for real, see nothing of this computer, and lose all with the power."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from flashd.adapters.userdata import render_user_data
from flashd.sim.box import BoxError, BoxKnobs, LocalBoxHost
from flashd.sim.box_config import CloudConfigError
from flashd.sim.box_launch import BoxIsolationError, check_isolation
from flashd.sim.cloud_types import BoxHost
from flashd.sim.hub import SimHub, Token
from flashd.sim.hub_http import serve_hub
from flashd.wire.payload import Payload, PayloadCode, PayloadHub, PayloadWorker

WAIT_S = 30.0
DONE = "box: cloud-init finished"


@dataclass
class AMachine:
    """What the cloud hands over, and what came back."""

    id: int
    user_data: str
    name: str = "flash-test-r1-abc-a0"
    gpu: str = "H100-80G-PCIe"
    gpu_count: int = 2
    text: str = ""
    off: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def console(self) -> Callable[[str], None]:
        return self._console

    @property
    def power_off(self) -> Callable[[], None]:
        return self.off.set

    def _console(self, text: str) -> None:
        self.text += text

    async def says(self, expected: str) -> str:
        await until(lambda: expected in self.text)
        return self.text


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if fact():
                return
            await asyncio.sleep(0.02)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[LocalBoxHost]:
    try:
        await check_isolation()
    except BoxIsolationError as missing:
        pytest.skip(str(missing))
    host = LocalBoxHost(tmp_path / "boxes", max_boxes=2)
    yield host
    await host.close()


def script(text: str, **files: str) -> str:
    """A payload that writes one program and starts it."""
    body = "#!/bin/sh\n" + textwrap.dedent(text)
    entries = [{"path": "/opt/go.sh", "permissions": "0755", "content": body}]
    entries += [{"path": f"/opt/flash/{name}.py", "content": textwrap.dedent(code)} for name, code in files.items()]
    return "#cloud-config\n" + yaml.safe_dump({"write_files": entries, "runcmd": [["/opt/go.sh"]]})


async def ran(host: LocalBoxHost, user_data: str, machine_id: int = 1) -> str:
    """Everything that the machine printed until its boot commands had ended."""
    machine = AMachine(machine_id, user_data)
    await host.start(machine)
    return await machine.says(DONE)


def test_it_is_a_box_host(tmp_path: Path) -> None:
    host: BoxHost = LocalBoxHost(tmp_path)
    assert isinstance(host, LocalBoxHost)


async def test_files_are_written_and_every_command_runs(host: LocalBoxHost) -> None:
    files = [{"path": "/opt/flash/payload.json", "permissions": "0600", "encoding": "b64", "content": "e30="}]
    commands = ["false", ["stat", "-c", "%a %s %U", "/opt/flash/payload.json"], "echo to-console; exit 7"]
    text = await ran(host, "#cloud-config\n" + yaml.safe_dump({"write_files": files, "runcmd": commands}))
    assert "600 2 root" in text
    assert "to-console" in text
    assert f"{DONE}, status 7" in text
    assert host.console_of(1) == text
    assert (host.directory_of(1) / "root/opt/flash/payload.json").read_bytes() == b"{}"


async def test_a_machine_cannot_touch_this_computer(host: LocalBoxHost, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    text = await ran(
        host,
        script(f"""
            rm -rf {tmp_path} && mkdir -p {tmp_path} && echo gone > {outside} && echo wrote-own
            touch /usr/bin/planted || echo usr-refused
            echo 1 > /proc/sys/kernel/panic || echo sysctl-refused
            mknod /tmp/disk b 8 0 || echo mknod-refused
            ls /etc/shadow /etc/ssl/private /root/.ssh || echo no-secrets
            hostname
        """),
    )
    assert outside.read_text() == "untouched"
    for word in ("wrote-own", "usr-refused", "sysctl-refused", "mknod-refused", "no-secrets", "flash-test-r1-abc-a0"):
        assert word in text
    assert not os.access("/usr/bin/planted", os.F_OK)


async def test_no_environment_variable_leaks_in(host: LocalBoxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHD_LEAK_TEST", "leaked")
    text = await ran(host, script("env; docker run --rm image sh -c env; cat /proc/1/environ | tr '\\0' '\\n'"))
    assert "PATH=" in text
    assert "leaked" not in text


async def test_the_machine_has_a_plain_python_and_the_container_the_real_one(host: LocalBoxHost) -> None:
    text = await ran(
        host,
        script("""
            python3 -c 'import huggingface_hub' 2>/dev/null || echo machine-without
            docker run --rm image python -c 'import huggingface_hub, sys; print("container", sys.version_info[:3])'
        """),
    )
    assert "machine-without" in text
    assert f"container {sys.version_info[:3]}" in text


async def test_a_container_has_its_mounts_its_environment_and_its_own_tmp(host: LocalBoxHost) -> None:
    text = await ran(
        host,
        script(
            """
            echo MINE > /tmp/machine; echo 'C=from file' > /opt/env; export D=inherited; mkdir /opt/ro
            docker run --rm --gpus all --shm-size=1g --network host -v /opt/flash:/root/flash -v /opt/ro:/ro:ro \
                -e A=1 -e D --env-file /opt/env -w /root/flash image python see.py
            cat /opt/flash/out; ls /runcode
            """,
            see="""
                import os, pathlib
                print("env", os.environ["A"], os.environ["C"], os.environ["D"], os.getcwd())
                print("tmp", [name for name in os.listdir("/tmp") if name == "machine"], "pid", os.getpid())
                pathlib.Path("/runcode").mkdir(); pathlib.Path("/runcode/x").touch()
                pathlib.Path("out").write_text("written through the mount\\n")
                try:
                    pathlib.Path("/ro/x").touch()
                except OSError as error:
                    print("ro", error.strerror)
                os.system("nvidia-smi -L | wc -l")
            """,
        ),
    )
    assert "env 1 from file inherited /root/flash" in text
    assert "tmp [] pid 1" in text
    assert "ro Read-only file system" in text
    assert "\n2\n" in text
    assert "written through the mount" in text
    assert not (host.directory_of(1) / "root/runcode/x").exists()


async def test_a_detached_container_is_inspected_followed_and_waited_for(host: LocalBoxHost) -> None:
    text = await ran(
        host,
        script("""
            docker pull image:1; docker run -d --name w image:1 sh -c 'sleep 0.5; echo late; exit 3' > /opt/id
            docker inspect -f 'now {{.State.Running}} {{.State.ExitCode}}' w
            docker logs -f w | sed 's/^/followed /'
            docker wait w; docker inspect --format '{{json .State.Status}} {{.State.ExitCode}}' $(cat /opt/id)
            docker ps -q | wc -l; docker ps -a --filter name=w --format 'row {{.Names}} {{.Status}}'
            docker run --name w image:1 true; echo "conflict $?"
            docker rm w; docker inspect w; echo "unknown $?"
        """),
    )
    assert "now true 0" in text
    assert "followed late" in text
    assert '\n3\n"exited" 3\n0\nrow w exited\n' in text
    assert "conflict 125" in text
    assert "unknown 1" in text


async def test_stopping_a_container_asks_first_and_kills_then(host: LocalBoxHost) -> None:
    text = await ran(
        host,
        script("""
            docker run -d --name polite image sh -c 'trap "echo bye; exit 9" TERM; while :; do sleep 0.1; done'
            docker run -d --name stubborn image sleep 1000
            docker run -d --name shot image sleep 1000
            docker run -d --name kept --init --stop-timeout 20 image sleep 1000
            sleep 0.3
            docker stop polite; docker stop -t 1 stubborn; docker kill shot; docker wait shot; docker stop kept
            docker logs polite
            for name in polite stubborn shot kept; do docker inspect -f "$name {{.State.ExitCode}}" $name; done
        """),
    )
    assert "bye\npolite 9\nstubborn 137\nshot 137\nkept 143\n" in text


async def test_docker_says_what_it_cannot_do(tmp_path: Path, host: LocalBoxHost) -> None:
    other = LocalBoxHost(tmp_path / "other", knobs=BoxKnobs(docker_ready_s=0.5, refused_images=("gone",)))
    try:
        text = await ran(
            other,
            script("""
                until docker info > /dev/null 2>&1; do echo not-ready; sleep 0.2; done
                docker pull gone; echo "pull $?"
                docker run image no-such-program; echo "run $?"
                docker run --frobnicate image true; echo "flag $?"
                docker swarm init; echo "verb $?"
            """),
        )
    finally:
        await other.close()
    assert "not-ready" in text
    assert "manifest unknown\npull 1" in text
    assert "run 127" in text
    assert "flag 125" in text
    assert "verb 125" in text


async def test_nvidia_smi_answers_queries(host: LocalBoxHost) -> None:
    query = "nvidia-smi --query-gpu=name,memory.total,index"
    text = await ran(
        host, script(f"nvidia-smi && {query} --format=csv,noheader; {query} --format=csv,nounits,noheader")
    )
    assert "Driver Version" in text
    assert "NVIDIA H100-80G-PCIe, 81559 MiB, 1\nNVIDIA H100-80G-PCIe, 81559, 0\n" in text


async def test_pulling_the_plug_ends_every_process(host: LocalBoxHost, tmp_path: Path) -> None:
    marker = f"987{os.getpid()}"
    machine = AMachine(
        1,
        script(f"""
            setsid sh -c 'trap "" TERM HUP INT; sleep {marker}1' > /dev/null 2>&1 &
            docker run -d --name w image sh -c 'setsid sleep {marker}2 & exec sleep {marker}3' > /dev/null
            sleep 0.3; echo all-started; exec sleep {marker}4
        """),
    )
    await host.start(machine)
    await machine.says("all-started")
    assert sleeping(marker) == [f"{marker}{number}" for number in range(1, 5)]
    await host.stop(1)
    assert sleeping(marker) == []
    assert host.running == []
    assert not machine.off.is_set()
    await host.stop(1)


async def test_machines_do_not_outlive_the_simulation(host: LocalBoxHost, tmp_path: Path) -> None:
    marker = f"988{os.getpid()}"
    program = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from tests.bootstrap.test_sim_box import AMachine, LocalBoxHost, script
        async def main():
            host = LocalBoxHost(Path({str(tmp_path / "theirs")!r}))
            machine = AMachine(1, script("docker run -d i sleep {marker}1 && echo going && sleep {marker}2"))
            await host.start(machine)
            await machine.says("going")
            print("up", flush=True)
            await asyncio.sleep(1000)
        asyncio.run(main())
    """)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    assert len(sleeping(marker)) == 2
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: not sleeping(marker))


async def test_a_machine_can_switch_itself_off(host: LocalBoxHost) -> None:
    machine = AMachine(1, script("shutdown -h now; sleep 1000"))
    await host.start(machine)
    async with asyncio.timeout(WAIT_S):
        await machine.off.wait()
    assert host.running == []
    assert "shutdown -h now" in (host.directory_of(1) / "root/var/log/sim-power.log").read_text()


async def test_a_reboot_keeps_the_disk_and_does_not_boot_anew(host: LocalBoxHost) -> None:
    user_data = script("docker run -d --name w image sleep 1000 > /dev/null; echo first-boot")
    await ran(host, user_data)
    await host.stop(1)
    machine = AMachine(1, user_data)
    await host.start(machine)
    assert "first-boot" not in machine.text
    record = next((host.directory_of(1) / "root/var/lib/sim-docker/containers").glob("*/container.json"))
    await until(lambda: '"exit_code": 137' in record.read_text())


async def test_the_number_of_machines_is_bounded(host: LocalBoxHost) -> None:
    for machine_id in (1, 2):
        await host.start(AMachine(machine_id, script("sleep 1000")))
    with pytest.raises(BoxError, match="running already"):
        await host.start(AMachine(2, script("true")))
    with pytest.raises(BoxError, match="2 machines are running"):
        await host.start(AMachine(3, script("true")))
    await host.stop(1)
    assert DONE in await ran(host, script("true"), machine_id=3)


async def test_a_payload_with_an_unknown_key_is_not_started(host: LocalBoxHost) -> None:
    with pytest.raises(CloudConfigError, match="unknown keys packages"):
        await host.start(AMachine(1, "#cloud-config\npackages: [curl]\n"))
    assert host.running == []


async def test_a_worker_reaches_the_simulated_hub(host: LocalBoxHost) -> None:
    hub = SimHub()
    hub.add_token("hf_box", Token("acme"))
    hub.add_repo("acme/runs")
    async with serve_hub(hub) as server:
        text = await ran(
            host,
            script(
                f"""
                docker run -v /opt/flash:/f -e HF_TOKEN=hf_box -e HF_ENDPOINT={server.url} -e HF_HUB_DISABLE_XET=1 \
                    image python /f/work.py
                """,
                work="""
                    from huggingface_hub import CommitOperationAdd, HfApi
                    adds = [CommitOperationAdd("sft/r1/DONE", b"1.5"), CommitOperationAdd("sft/r1/w.bin", bytes(9))]
                    print(HfApi().create_commit("acme/runs", adds, commit_message="end", repo_type="dataset").oid)
                """,
            ),
        )
    head = hub.repo("acme/runs").head
    assert head.title == "end"
    assert head.id in text
    assert hub.read("acme/runs", "sft/r1/w.bin") == bytes(9)


async def test_the_real_payload_runs_from_the_boot_commit_to_the_end(host: LocalBoxHost) -> None:
    hub = SimHub()
    hub.add_token("hf_box", Token("acme", may_create=False))
    hub.add_repo("acme/runs")
    worker = "import flash_report\nflash_report.report('train', step=3)\nflash_report.metrics({'loss': 0.25})\n"
    code = hub.commit("acme/runs", {"code/worker.py": worker}, "code")
    async with serve_hub(hub) as server:
        payload = Payload(
            run_id="r1",
            ns="demo",
            phase="sft",
            seed=7,
            attempt=0,
            token="launch-token",
            provider="hyperstack",
            hub=PayloadHub(server.url, "acme/runs", "sft/r1/seed7", 600, 600),
            code=PayloadCode("acme/runs", code.id),
            worker=PayloadWorker("image", ("python", "worker.py")),
            max_wall_s=300,
            deadline_at=time.time() + 600,
            env={"HF_TOKEN": "hf_box"},
            spec={"model": "tiny"},
        )
        machine = AMachine(1, render_user_data(payload))
        await host.start(machine)
        await until(lambda: any("event=end" in title for title in hub.titles("acme/runs")))
        await host.stop(1)
    assert [title.partition("event=")[2].split()[0] for title in hub.titles("acme/runs")[2:]] == ["boot", "end"]
    assert json.loads(hub.read("acme/runs", "sft/r1/seed7/metrics.json") or b"") == {"loss": 0.25}
    assert json.loads(hub.read("acme/runs", "sft/r1/seed7/hyperstack_attempt0.json") or b"")["ok"] is True
    assert "169.254.169.254" in (host.directory_of(1) / "root/var/log/sim-iptables.log").read_text()


def sleeping(marker: str) -> list[str]:
    """Arguments of all `sleep` processes on this computer that begin with the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and words[1].decode().startswith(marker):
            found.append(words[1].decode())
    return sorted(found)
