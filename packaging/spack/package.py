"""Spack recipe: copy it to packages/py_hpcgnn/ of a Spack repository, then run `spack install py-hpcgnn`."""

from spack.package import EnvironmentModifications, depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHpcgnn(PythonPackage):
    """Full-batch training of graph neural networks over MPI."""

    pypi = "hpcgnn/hpcgnn-0.2.0.tar.gz"

    license("Apache-2.0")

    # The checksum of a release is known once it is published: `spack checksum py-hpcgnn`.
    version("0.2.0")

    variant("parmetis", default=True, description="Partition on several ranks with ParMETIS")

    depends_on("cxx", type="build")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@70.1:", type="build")

    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-markupsafe@2.1:", type=("build", "run"))
    depends_on("py-matplotlib@3.8:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-msgspec@0.19:", type=("build", "run"))
    depends_on("py-numba@0.59:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-scikit-learn@1.3:", type=("build", "run"))
    depends_on("py-scipy@1.11:", type=("build", "run"))
    depends_on("py-tomli-w@1:", type=("build", "run"))
    depends_on("py-torch@2.4:", type=("build", "run"))
    depends_on("py-xxhash@3.4:", type=("build", "run"))

    # Spack has no recipes for pymetis and kaminpar. These libraries take their place; hpcgnn loads them by name. PT-Scotch is not
    # among them, because its ParMETIS interface (scotch+metis) conflicts with the package metis.
    depends_on("metis+int64", type="run")
    depends_on("parmetis+int64", type="run", when="+parmetis")

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        """Let the dynamic linker find the libraries that are loaded by name."""
        for name in ("metis", "parmetis"):
            if self.spec.satisfies(f"^{name}"):
                env.prepend_path("LD_LIBRARY_PATH", self.spec[name].prefix.lib)
