import sys

from rft.sagemaker.cli import main

sys.exit(main())
