package pods

// Pause requests no more cells, until the process ends: pods that wait for one
// get the reason why. Cells that there are go on, and deleted pods are seen out.
func (c *Controller) Pause(why string) {
	c.mu.Lock()
	c.paused = why
	c.mu.Unlock()
	for _, obj := range c.cfg.Pods.GetStore().List() {
		c.enqueue(obj)
	}
}
