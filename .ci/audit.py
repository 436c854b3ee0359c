"""audit.py LOCKFILE: fail on a known vulnerability; only warn when the database can't be asked."""

import json
import subprocess
import sys

AUDIT = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off"]


def main(lockfile: str) -> int:
    """Print the findings; 1 when there is one."""
    done = subprocess.run(
        [*AUDIT, "--format", "json", "-r", lockfile], capture_output=True, text=True, check=False
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print("audit: skipped, pip-audit has no answer:", (done.stderr.strip() or "?").splitlines()[-1])
        return 0
    found = [(p["name"], p["version"], v["id"]) for p in packages for v in p.get("vulns", ())]
    skipped = sum("skip_reason" in p for p in packages)
    for name, version, vulnerability in found:
        print(f"audit: {name} {version} has {vulnerability}")
    print(f"audit: {len(packages) - skipped} packages looked up, {skipped} unknown, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
