// Initialize models
const streamingProcessor = new StreamingProcessor({
  audioModel: whisperModel,
  textModel: bertModel,
  useSharedTensors: true
});

// Process streaming audio
streamingProcessor.onAudioChunk((audioChunk) => {
  // Process audio with shared tensors automatically managed
  const result = streamingProcessor.processAudioWithTranscription(audioChunk);
  
  // Use the result in real-time
  updateUI(result);
});
