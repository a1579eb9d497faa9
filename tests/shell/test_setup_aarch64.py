"""launch/setup.sh on aarch64, with a real uv that installs for that platform: three sources for one environment."""

import hashlib
import zipfile

import pytest
from toy_checkout import UV, add_requirement, modules, needs_uv, script, setup

UNAME = "[[ $1 == -m ]] && echo aarch64"
# As uv is on an aarch64: what names no platform is for that one.
ARM_UV = f"""
case "$*" in
"pip install"*--python-platform*) exec "{UV}" "$@" ;;
"pip install"*) exec "{UV}" "$@" --python-platform aarch64-manylinux_2_35 ;;
*) exec "{UV}" "$@" ;;
esac
"""
X86, ARM = "py3-none-manylinux_2_35_x86_64", "py3-none-manylinux_2_35_aarch64"


def wheel(folder, name, version, tag, text="", requires=()):
    """A wheel of one module under that tag; returns its sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {required}\n" for required in requires)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        archive.writestr(
            f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def torch(cuda):
    return f"class version:\n    cuda = {cuda!r}\n"


@pytest.fixture
def arm(checkout, tmp_path):
    """A function that sets up on such a machine. Its PyPI has torch without CUDA, and openrlhf for x86-64 alone."""
    (checkout / "requirements/gpu.txt").unlink()
    pypi, index = tmp_path / "pypi", tmp_path / "index"
    sums = {
        "gpu-aarch64": ["torch==2.9.1", wheel(pypi, "torch", "2.9.1", ARM, torch(None))],
        "openrlhf": ["openrlhf==0.9.3", wheel(pypi, "openrlhf", "0.9.3", X86)],
    }
    for lock, (pin, digest) in sums.items():
        (checkout / f"requirements/{lock}.txt").write_text(f"{pin} \\\n    --hash=sha256:{digest}\n")
    wheel(index / "torch", "torch", "2.9.1+cu128", ARM, torch("12.8"), ["cuda_library==12.8"])
    wheel(index / "cuda-library", "cuda_library", "12.8", ARM)
    for name in ("torch", "cuda-library"):
        links = "".join(f'<a href="{path.name}">{path.name}</a>' for path in (index / name).glob("*.whl"))
        (index / name / "index.html").write_text(links)
    fakes = script(tmp_path / "fakes", "uname", UNAME)
    script(fakes, "uv", ARM_UV)

    def run(**environment):
        places = {"UV_FIND_LINKS": str(pypi), "TORCH_INDEX": index.as_uri(), "RFT_STACK": "gpu"}
        return setup(checkout, path=str(fakes), **(places | environment))

    return run


def installed(checkout):
    return {path.name for path in checkout.glob(".venv-gpu/lib/python3.11/site-packages/*.dist-info")}


@needs_uv
def test_torch_with_cuda_and_openrlhf_of_x86_then_nothing_to_do(arm, checkout):
    code, out, err = arm()
    assert code == 0, err
    assert "installing requirements/gpu-aarch64.txt requirements/openrlhf.txt into .venv-gpu" in out
    wanted = {"torch-2.9.1+cu128", "cuda_library-12.8", "openrlhf-0.9.3", "toy-1.0"}
    assert installed(checkout) == {f"{name}.dist-info" for name in wanted}
    code, out, _ = arm(TORCH_INDEX="")
    assert code == 0 and "installing" not in out, "an environment that is there needs no index"


@needs_uv
@pytest.mark.parametrize("lock", ["gpu-aarch64", "openrlhf"])
def test_a_change_of_either_lock_is_installed(arm, checkout, lock):
    assert arm()[0] == 0
    add_requirement(checkout, "second", lock)
    code, out, err = arm()
    assert code == 0 and "installing" in out, err
    assert "second" in modules(checkout, ".venv-gpu") and "torch-2.9.1+cu128.dist-info" in installed(checkout)


@pytest.mark.parametrize("given", [{"TORCH_INDEX": ""}, {"RFT_STACK": "cpu"}])
def test_what_is_missing_is_said_before_anything_is_installed(arm, checkout, given):
    code, out, err = arm(**given)
    assert code == 1 and "installing" not in out and not list(checkout.glob(".venv*"))
    assert err.count("error:") == 1 and "TORCH_INDEX" in err and "pytorch.org/get-started/locally" in err
    assert "repair: RFT_STACK=gpu TORCH_INDEX=ADDRESS make setup" in err


@needs_uv
def test_an_index_without_torch_for_cuda_is_refused(arm, checkout, tmp_path):
    """uv then goes on to PyPI's build, which would train on no GPU."""
    (tmp_path / "empty").mkdir()
    code, _, err = arm(TORCH_INDEX=(tmp_path / "empty").as_uri())
    assert code == 1 and "error: this torch has no CUDA" in err and "repair: correct TORCH_INDEX" in err
    assert not (checkout / ".venv-gpu/.rft-setup").exists()


@needs_uv
def test_a_torch_with_other_bytes_than_its_index_says_is_refused(arm, checkout, tmp_path):
    page = tmp_path / "index/torch/index.html"
    page.write_text(page.read_text().replace('.whl"', f'.whl#sha256={"0" * 64}"'))
    code, _, err = arm()
    assert code == 1 and "error: torch could not be installed" in err and "torch 2.9.1 for aarch64" in err
    assert not (checkout / ".venv-gpu/.rft-setup").exists()
