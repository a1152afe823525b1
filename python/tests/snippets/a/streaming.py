# ruff: noqa: F821 (the manifest sets the models and updateUI)

from cotensor import StreamingProcessor

# Initialize models
streamingProcessor = StreamingProcessor({
    "audioModel": whisperModel,
    "textModel": bertModel,
    "useSharedTensors": True,
})

# Process streaming audio
@streamingProcessor.onAudioChunk
def onAudioChunk(audioChunk):
    # Process audio with shared tensors automatically managed
    result = streamingProcessor.processAudioWithTranscription(audioChunk)

    # Use the result in real-time
    updateUI(result)
