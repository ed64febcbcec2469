package containerd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/elotl/kip/internal/agent/configs"
)

// namespace is where containerd's CRI plugin keeps its images and containers.
const namespace = "k8s.io"

// Labels by which the CRI plugin knows an image as its own and as one that is
// never to be collected.
var pinned = map[string]string{
	"io.cri-containerd.image":  "managed",
	"io.cri-containerd.pinned": "pinned",
}

// ImportImages loads image archives into containerd and pins them: the
// arguments are their files. It waits for containerd to serve.
func ImportImages() int {
	return run(flag.NewFlagSet("import-images", flag.ExitOnError), func(ctx context.Context, c *containerd.Client, files []string) error {
		for _, file := range files {
			if err := importImage(ctx, c, file); err != nil {
				return fmt.Errorf("import %s: %w", file, err)
			}
		}
		return nil
	})
}

func importImage(ctx context.Context, c *containerd.Client, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	images, err := c.Import(ctx, f, containerd.WithImageLabels(pinned))
	if err != nil {
		return err
	}
	if len(images) == 0 {
		return errors.New("the archive names no image")
	}
	for _, image := range images {
		if err := containerd.NewImage(c, image).Unpack(ctx, "overlayfs"); err != nil {
			return fmt.Errorf("unpack %s: %w", image.Name, err)
		}
	}
	return nil
}

// StopPods stops every container and then every sandbox, as a machine does that
// is switched off: SIGTERM, and SIGKILL after the grace.
func StopPods() int {
	flags := flag.NewFlagSet("stop-pods", flag.ExitOnError)
	grace := flags.Duration("grace", 10*time.Second, "time from SIGTERM to SIGKILL")
	return run(flags, func(ctx context.Context, c *containerd.Client, _ []string) error {
		conn, ok := c.Conn().(grpc.ClientConnInterface)
		if !ok {
			return fmt.Errorf("containerd's client speaks no gRPC but %T", c.Conn())
		}
		runtime := cri.NewRuntimeServiceClient(conn)
		containers, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{
			Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
		})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		var wg sync.WaitGroup
		errs := make([]error, len(containers.Containers))
		for i, container := range containers.Containers {
			wg.Go(func() {
				_, err := runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: container.Id, Timeout: int64(grace.Seconds())})
				if err != nil && status.Code(err) != codes.NotFound {
					errs[i] = fmt.Errorf("stop container %s: %w", container.Id, err)
				}
			})
		}
		wg.Wait()
		sandboxes, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list pod sandboxes: %w", err))...)
		}
		for _, s := range sandboxes.Items {
			if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
				errs = append(errs, fmt.Errorf("stop pod sandbox %s: %w", s.Id, err))
			}
		}
		return errors.Join(errs...)
	})
}

// run connects to containerd, does f with the arguments that are no flags, and
// returns an exit code.
func run(flags *flag.FlagSet, f func(context.Context, *containerd.Client, []string) error) int {
	timeout := flags.Duration("timeout", 30*time.Second, "time for all of it, from waiting for containerd on")
	address := flags.String("address", configs.ContainerdSocket, "containerd's socket")
	_ = flags.Parse(os.Args[1:]) // ExitOnError
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	err := func() error {
		c, err := containerd.New(*address, containerd.WithDefaultNamespace(namespace), containerd.WithTimeout(*timeout))
		if err != nil {
			return fmt.Errorf("connect to containerd at %s: %w", *address, err)
		}
		defer c.Close()
		if serving, err := c.IsServing(ctx); err != nil {
			return fmt.Errorf("wait for containerd at %s: %w", *address, err)
		} else if !serving {
			return fmt.Errorf("containerd at %s does not serve", *address)
		}
		return f(ctx, c, flags.Args())
	}()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flags.Name(), err)
		return 1
	}
	return 0
}
