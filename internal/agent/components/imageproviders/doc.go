// Package imageproviders owns the proof that the kubelet's own code takes the plugin of package
// imageplugin, and its configuration. It must not be linked into anything: it has a test only,
// apart from the kubelet's package, of which a test takes long to link.
package imageproviders
