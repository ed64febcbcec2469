package namespace

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// StartKarpenter starts Karpenter, with its kwok provider, beside the nodes of the cluster, and returns what stops it.
func (s *Space) StartKarpenter() (stop func()) {
	s.Helper()
	tools := os.Getenv("KIP_BENCH_TOOLS")
	if tools == "" {
		s.Fatal("KIP_BENCH_TOOLS is not set: make bench-tools builds Karpenter into that folder")
	}
	cmd := exec.Command(filepath.Join(tools, "side-by-side"), "--beside", "--kubeconfig="+s.World.Kubeconfig,
		"--karpenter="+filepath.Join(tools, "karpenter"), "--kwok="+filepath.Join(tools, "kwok"))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			s.Errorf("stop Karpenter: %v", err)
		}
		if err := cmd.Wait(); err != nil {
			s.Errorf("Karpenter: %v\n%s", err, &errs)
		}
	}
	s.Cleanup(stop)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		stop()
		s.Fatalf("Karpenter is not ready: %q, %v", line, err)
	}
	return stop
}
