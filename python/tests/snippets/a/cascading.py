# ruff: noqa: F704, F821 (a notebook awaits at the top level, too; the manifest sets the models and their input)

# Run whisper for speech recognition
transcription = await whisperModel.process(audioInput)
audioEmbedding = whisperModel.getSharedTensor("audio_embedding")

# Perform sentiment analysis on the transcription using the audio embedding
sentimentResult = await sentimentModel.processWithSharedEmbedding(transcription.text, audioEmbedding)
