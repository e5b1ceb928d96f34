"""What one worker process is started with: role, device, ports and the SGLang flags that follow from them."""
