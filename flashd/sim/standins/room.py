"""Private roots: a directory that becomes the whole file system of a process, with chosen parts of another bound in."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
PR_SET_PDEATHSIG = 1
SIGKILL = 9

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# What programs need of /etc. Not all of it: the owner of this computer may keep credentials there.
ETC = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "group",
    "hosts",
    "host.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki",
    "protocols",
    "python3",
    "python3.11",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)

_libc = ctypes.CDLL(None, use_errno=True)


def make_private() -> None:
    """Cut this mount namespace off: nothing that is mounted here shows anywhere else."""
    _check(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make / private")


def own_mounts() -> None:
    _check(_libc.unshare(CLONE_NEWNS), "unshare mounts")
    make_private()


def own_pids_for_children() -> None:
    _check(_libc.unshare(CLONE_NEWPID), "unshare pids")


def die_with_parent() -> None:
    _check(_libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl")


def bind(source: Path, target: Path, read_only: bool = False) -> None:
    """Show `source` (a file or a directory with all that is mounted below it) at `target`, which is made if absent."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    flags = MS_BIND | MS_REC
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None), f"bind {source} to {target}")
    if read_only:
        _read_only(target)


def mount(kind: str, target: Path, options: str = "", flags: int = 0) -> None:
    target.mkdir(parents=True, exist_ok=True)
    done = _libc.mount(kind.encode(), os.fsencode(target), kind.encode(), flags, options.encode() or None)
    _check(done, f"mount {kind} on {target}")


def bind_system(source: Path, root: Path) -> None:
    """Programs and libraries of `source`, read-only; links between its top directories stay links."""
    for name in SYSTEM:
        there = source / name
        if there.is_symlink():
            if not (root / name).is_symlink():
                (root / name).symlink_to(there.readlink())
        elif there.is_dir():
            bind(there, root / name, read_only=True)


def bind_etc(source: Path, root: Path) -> None:
    for name in ETC:
        there = source / name
        if there.exists():
            # The target of a link, e.g. of resolv.conf, may not exist in the new root.
            bind(there.resolve(), root / "etc" / name, read_only=True)


def fill_dev(source: Path, root: Path) -> None:
    dev = root / "dev"
    mount("tmpfs", dev, "mode=755,size=1m", MS_NOSUID)
    for name in DEVICES:
        if (source / name).exists():
            bind(source / name, dev / name)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{number}")
    (dev / "fd").symlink_to("/proc/self/fd")
    mount("tmpfs", dev / "shm", "mode=1777", MS_NOSUID | MS_NODEV)


def fill_proc(root: Path) -> None:
    """Processes of this namespace only, and no knob of the kernel that a process could turn."""
    proc = root / "proc"
    mount("proc", proc)
    bind(proc / "sys", proc / "sys", read_only=True)
    if (proc / "sysrq-trigger").exists():
        bind(root / "dev" / "null", proc / "sysrq-trigger")


def make_directories(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(0o1777)
    (root / "root").mkdir(exist_ok=True)
    (root / "root").chmod(0o700)


def enter(root: Path) -> None:
    """Make `root` the file system of this process; the old one is gone for it, not merely hidden."""
    os.chdir(root)
    _check(_libc.pivot_root(b".", b"."), f"pivot_root to {root}")
    _check(_libc.umount2(b".", MNT_DETACH), "let go of the old root")
    os.chdir("/")


def _read_only(target: Path) -> None:
    flags = MS_REMOUNT | MS_BIND | MS_RDONLY
    place = os.fsencode(target)
    if _libc.mount(None, place, None, flags, None) == 0:
        return
    # In a user namespace the flags that the mount already has must be repeated.
    found = os.statvfs(target).f_flag
    kept = sum(flag for mask, flag in ((os.ST_NOSUID, MS_NOSUID), (4, MS_NODEV), (8, 8)) if found & mask)
    _check(_libc.mount(None, place, None, flags | kept, None), f"make {target} read-only")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)} ({errno.errorcode.get(number, number)})")
