"""Put the answers of a run into the experiment tracker that the job used: W&B, MLflow, TensorBoard, trackio."""
