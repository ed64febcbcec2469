// Package firstboot carries out the operator's cloud-init file on a cell's machine, once in
// the machine's life. It must not touch what the agent keeps and writes of itself.
package firstboot
