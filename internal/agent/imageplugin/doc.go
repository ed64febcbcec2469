// Package imageplugin owns the plugin that the kubelet starts for what pulls an image: it asks
// Kip, by the agent's local API endpoint, as the kubelet itself asks. It must not know which
// clouds there are, nor keep anything.
package imageplugin
