"""`python -m kt`."""

from kt.cli.app import main

if __name__ == "__main__":
    main()
