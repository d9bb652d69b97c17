"""Who decides in how many bits each row travels (AdaQP, Sylvie, PipeQS)."""
