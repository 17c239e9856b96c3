"""`python -m thumbwheel` and the `thumbwheel` command."""

from thumbwheel.cli.main import main

if __name__ == "__main__":
    main()
