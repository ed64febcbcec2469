// Package gpus finds the GPUs of NVIDIA on a cell, and describes each of them, with what a
// container needs of the driver, as a device of the Container Device Interface (CDI). The
// driver, its modules and its libraries, are the image's: nothing is installed here. Who
// gets which GPU is the kubelet's business.
package gpus
