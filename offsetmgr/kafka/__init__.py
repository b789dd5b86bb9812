"""All that speaks Kafka: clients, requests, logs, the producer, and the translation of errors."""
