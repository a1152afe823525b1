// Run whisper for speech recognition
const transcription = await whisperModel.process(audioInput);
const audioEmbedding = whisperModel.getSharedTensor('audio_embedding');

// Perform sentiment analysis on the transcription using the audio embedding
const sentimentResult = await sentimentModel.processWithSharedEmbedding(
  transcription.text,
  audioEmbedding
);
