// Enable verbose logging for shared tensors
SharedTensor.setVerboseLogging(true);

// Get diagnostic information about all active shared tensors
const diagnostics = SharedTensor.getDiagnostics();
console.log(diagnostics);

// Check reference counts
console.log(`Reference count: ${sharedTensor.getReferenceCount()}`);
