# ruff: noqa: F821 (the manifest sets sharedTensor)

from cotensor.sharing import SharedTensor

# Enable verbose logging for shared tensors
SharedTensor.setVerboseLogging(True)

# Get diagnostic information about all active shared tensors
diagnostics = SharedTensor.getDiagnostics()
print(diagnostics)

# Check reference counts
print(f"Reference count: {sharedTensor.getReferenceCount()}")
