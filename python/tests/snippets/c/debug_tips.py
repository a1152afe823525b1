import logging

from cotensor.client import SharedTensorClient
from cotensor.provider import SharedTensorProvider

logging.basicConfig(level=logging.DEBUG)

client = SharedTensorClient(verbose_debug=True)

provider = SharedTensorProvider()
print(provider._registered_functions)
