package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/eks"
)

// noRegistry is the way to a registry of images that is not there.
type noRegistry struct{}

func (noRegistry) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no route to host")
}

// anAccountWith serves a model of AWS that has this cluster as one of EKS, with a role for Kip's service account.
func anAccountWith(t *testing.T, endpoint string) (role string) {
	t.Helper()
	const issuer = "oidc.eks.us-east-1.amazonaws.com/id/AAAA"
	model, err := ec2.New(ec2.Config{
		Sim: sim.Config{Catalogue: []catalog.InstanceType{{
			Name: "t3.micro", MilliCPU: 2000, MemoryBytes: 1 << 30, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: "us-east-1a",
				Subnet: "subnet-a"}},
		}}},
		Subnets:   []ec2.Subnet{{ID: "subnet-a", VPC: "vpc-1", Zone: "us-east-1a"}},
		Routes:    []ec2.Route{ec2.NATRoute("vpc-1")},
		Groups:    []ec2.Group{{ID: "sg-00000001", Name: "eks-cluster-sg", VPC: "vpc-1"}},
		Images:    []ec2.Image{{ID: "ami-1", Name: "kip-cell-amd64-1", Owner: "self", RootDevice: "/dev/xvda", GiB: 1}},
		Providers: []cloudmodel.Provider{{Issuer: "https://" + issuer, Audiences: []string{"sts.amazonaws.com"}}},
		Clusters: []ec2.Cluster{{
			Name: "kip", Version: "1.36", Endpoint: endpoint, VPC: "vpc-1", Subnets: []string{"subnet-a"}, Group: "sg-00000001",
			Issuer: "https://" + issuer,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	role = "arn:aws:iam::123456789012:role/kip"
	if err := model.Roles.PutIAMRole(ec2.IAMRole{
		ARN: role, Inline: map[string]string{"kip": string(aws.CorePolicy())},
		Trust: fmt.Sprintf(`{"Statement": [{"Effect": "Allow", "Principal": {"Federated": "arn:aws:iam::123456789012:oidc-provider/%s"},
			"Action": "sts:AssumeRoleWithWebIdentity",
				"Condition": {"StringEquals": {"%s:sub": "system:serviceaccount:kip:kip-provider"}}}]}`, issuer, issuer),
	}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(model)
	t.Cleanup(func() {
		if err := model.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	for key, value := range map[string]string{
		"AWS_ENDPOINT_URL": server.URL, "AWS_ACCESS_KEY_ID": "AKIAADMIN", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_CONFIG_FILE": "/dev/null",
		"AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "", "AWS_SESSION_TOKEN": "",
	} {
		t.Setenv(key, value)
	}
	return role
}

// deployInstallsTwice installs Kip as deploy.sh does, as far as a cluster without machines goes: until it waits for Kip's pod. The second
// time the API server tries each object before it is applied.
func deployInstallsTwice(t *testing.T, is identities) {
	ctx := t.Context()
	role := anAccountWith(t, is.config.Host)
	for _, make := range []func() error{
		func() error {
			_, err := is.admin.CoreV1().Services(metav1.NamespaceSystem).Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53}}},
			}, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := is.admin.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "ebs.csi.aws.com"}},
				metav1.CreateOptions{})
			return err
		},
	} {
		if err := make(); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	untyped, err := dynamic.NewForConfig(is.config)
	if err != nil {
		t.Fatal(err)
	}
	extensions, err := apiextensionsclient.NewForConfig(is.config)
	if err != nil {
		t.Fatal(err)
	}
	errWaits := errors.New("it waits")
	install := func() {
		t.Helper()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		d := eks.Deployment{
			Request: eks.Request{Cluster: "kip", Region: "us-east-1", Tag: "1", Role: role, BootImage: eks.DefaultBootImage},
			Connect: func() (*eks.Kubernetes, error) {
				return &eks.Kubernetes{Client: is.admin, Dynamic: untyped, CRDs: extensions.CustomResourceDefinitions(), Host: is.config.Host}, nil
			},
			Say: func(format string, args ...any) {
				if t.Logf(format, args...); strings.HasPrefix(format, "Waiting") {
					cancel(errWaits)
				}
			},
			Clock:      clock.RealClock{},
			Registries: noRegistry{},
		}
		if err := d.Run(ctx, false); !errors.Is(err, errWaits) {
			t.Fatal(err)
		}
	}
	set := func() (uid string, generation int64) {
		t.Helper()
		s, err := is.admin.AppsV1().StatefulSets("kip").Get(ctx, "kip-provider", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return string(s.UID), s.Generation
	}
	install()
	uid, generation := set()
	install()
	if again, now := set(); again != uid || now != generation {
		t.Errorf("the second run makes generation %d of %d", now, generation)
	}
	if err := is.admin.CoreV1().Namespaces().Delete(ctx, "kip", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, "what is of the whole cluster goes with the namespace", func() error {
		roles, err := is.admin.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=kip-provider"})
		if err != nil {
			return err
		}
		policies, err := is.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx,
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=kip-provider"})
		if err != nil {
			return err
		}
		if n := len(roles.Items) + len(policies.Items); n > 0 {
			return fmt.Errorf("%d roles and policies are left", n)
		}
		return nil
	})
}
