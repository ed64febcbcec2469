// Command csidriver is a CSI driver for the end-to-end tests: the node plugin of a
// network file system, as small as one can be that would show what is missing. Its
// volumes live on an HTTP server. They are fetched when they are staged, and written
// back when they are unstaged, so that one that is not unmounted loses its data.
//
// As in the DaemonSets of real drivers, one container is the driver and another
// registers it with the kubelet.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	name := flag.String("driver", "", "`name` of the driver")
	socket := flag.String("socket", "", "`file` on which it is served, or found")
	register := flag.String("register", "", "register the driver, by a socket in this `folder`, instead of serving it")
	kubelet := flag.String("kubelet-socket", "", "`file` of the driver's socket as the kubelet sees it; with -register")
	provider := flag.String("provider", "", "`file` of the socket of a provider, which the driver asks when it publishes a volume")
	provide := flag.String("provide", "", "be such a provider at this socket's `file`, instead of a driver")
	path := flag.String("ask", "", "`path` of the Kubernetes API to ask with the pod's service account, before the driver is served")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	err := func() error {
		if *provide != "" {
			return serveProvider(ctx, *provide)
		}
		if *register == "" {
			answer, err := askAPI(ctx, *path)
			if err != nil {
				return err
			}
			d := &driver{name: *name, node: os.Getenv("NODE_NAME"), state: filepath.Dir(*socket), answer: answer, provider: *provider}
			return serve(ctx, *socket, func(s *grpc.Server) {
				csi.RegisterIdentityServer(s, d)
				csi.RegisterNodeServer(s, d)
			})
		}
		found, err := nameOf(ctx, *socket)
		if err != nil {
			return err
		}
		return serve(ctx, filepath.Join(*register, found+"-reg.sock"), func(s *grpc.Server) {
			registration.RegisterRegistrationServer(s, registrar{name: found, socket: *kubelet})
		})
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1)
	}
}

// askAPI returns what is at a path of the Kubernetes API, as drivers read their settings there; "" for no path.
func askAPI(ctx context.Context, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return "", err
	}
	authorities, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return "", err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authorities)
	api := "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+string(token))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}, Timeout: time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: %s: %s", path, resp.Status, body)
	}
	return strings.ReplaceAll(string(body), "\n", " "), nil
}

// provided is what a provider answers.
const provided = "silver"

// serveProvider is a provider, as Vault's is one of the driver secrets-store, until ctx ends.
func serveProvider(ctx context.Context, socket string) error {
	l, err := listen(socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, provided) })}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	return server.Serve(l)
}

// askProvider returns what a provider answers.
func askProvider(ctx context.Context, socket string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://provider/", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// listen replaces a socket.
func listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", socket)
}

// serve serves gRPC on a socket until ctx ends.
func serve(ctx context.Context, socket string, register func(*grpc.Server)) error {
	l, err := listen(socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	register(server)
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(l)
}

// logged prints each call without what is asked: there are secrets in it.
func logged(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	fmt.Println(info.FullMethod, "error:", err)
	return resp, err
}

// nameOf asks the driver for its name, and waits until it answers.
func nameOf(ctx context.Context, socket string) (string, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("ask the driver for its name: %w", err)
	}
	return info.Name, nil
}

// registrar tells the kubelet where the driver is.
type registrar struct {
	registration.UnsafeRegistrationServer
	name, socket string
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.name,
		Endpoint:          r.socket,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		fmt.Fprintln(os.Stderr, "csidriver: the kubelet does not register the driver:", s.Error)
		os.Exit(1) // to be started again, as registrars do
	}
	return &registration.RegistrationStatusResponse{}, nil
}
