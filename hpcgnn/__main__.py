"""``python -m hpcgnn``."""

from hpcgnn.cli.main import main

if __name__ == "__main__":
    main()
