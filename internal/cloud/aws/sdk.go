package aws

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// maxAnswer bounds an answer of EC2 in bytes: a page of a thousand instances with
// fifty tags each is below 20 MiB.
const maxAnswer = 64 << 20

// loadSDK reads the settings of the SDK: who Kip is, and whom it asks.
func loadSDK(ctx context.Context, cfg Config) (aws.Config, error) {
	load := []func(*config.LoadOptions) error{
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }), // Kip schedules its calls itself
		config.WithHTTPClient(awshttp.NewBuildableClient()),                // to which the SDK adds AWS_CA_BUNDLE
	}
	if cfg.Region != "" {
		// Of other services, too: STS turns a role's token into keys in the same partition.
		load = append(load, config.WithRegion(cfg.Region))
	}
	if cfg.UseFIPS {
		load = append(load, config.WithUseFIPSEndpoint(aws.FIPSEndpointStateEnabled))
	}
	if cfg.AccessKeyID != "" {
		load = append(load, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(cfg.AccessKeyID, cfg.SecretAccessKey, "")))
	}
	if cfg.Endpoint != "" {
		// Other services, too: STS turns a role's token into keys. What is said here wins over the
		// environment, for whichever service: so each has its own said again when its client is made.
		load = append(load, config.WithEC2IMDSClientEnableState(imds.ClientDisabled), config.WithBaseEndpoint(*cfg.endpointOf("STS")))
	}
	if cfg.SkipVerify && cfg.Endpoint != "" && cfg.Transport == nil {
		skip, err := skipVerify(cfg.Endpoint)
		if err != nil {
			return aws.Config{}, err
		}
		load = append(load, config.WithAPIOptions([]func(*middleware.Stack) error{skip}))
	}
	sdk, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return sdk, fmt.Errorf("read the settings of AWS: %w", err)
	}
	return sdk, nil
}

// newAPI is EC2's, whose refusals STS decodes.
func newAPI(sdk aws.Config, cfg Config) *ec2.Client {
	decode := newRefusals(newSTS(sdk, cfg), cfg)
	return ec2.NewFromConfig(sdk, func(o *ec2.Options) {
		o.APIOptions = append(slices.Clip(o.APIOptions), decode.add)
		o.Region = cfg.Region
		o.HTTPClient = cfg.bound(o.HTTPClient)
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(strings.TrimSuffix(cfg.Endpoint, "/"))
		}
	})
}

// newSTS is that of the region.
func newSTS(sdk aws.Config, cfg Config) *sts.Client {
	return sts.NewFromConfig(sdk, func(o *sts.Options) {
		o.Region = cfg.Region
		o.HTTPClient, o.BaseEndpoint = cfg.reach("STS", o.HTTPClient, o.BaseEndpoint)
	})
}

// bound is a client of the SDK's, or Transport in its place, whose answers are bounded.
func (cfg *Config) bound(client ec2.HTTPClient) ec2.HTTPClient {
	if cfg.Transport != nil {
		client = &http.Client{Transport: cfg.Transport}
	}
	return bounded{client}
}

// reach returns by what, and where, a service besides EC2 is asked, whose client would ask as these say.
func (cfg *Config) reach(service string, client ec2.HTTPClient, endpoint *string) (ec2.HTTPClient, *string) {
	return cfg.bound(client), cmp.Or(cfg.endpointOf(service), endpoint)
}

// skipVerify has the calls to an endpoint sent by a client that takes any certificate, after all
// else that the SDK does with them: those to another host go on to the SDK's own. The SDK takes no
// client but its own where AWS_CA_BUNDLE is set, and TLS does not tell hosts apart that are IP addresses.
func skipVerify(endpoint string) (func(*middleware.Stack) error, error) {
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("cloud.aws.endpointURL: %w", err)
	}
	send := smithyhttp.NewClientHandlerWithOptions(bounded{&http.Client{
		Transport:     anyCertificate(at),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // which may be to another host
	}})
	return func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("SkipVerifyOfEndpoint", func(
			ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
		) (middleware.DeserializeOutput, middleware.Metadata, error) {
			if r, is := in.Request.(*smithyhttp.Request); !is || !strings.EqualFold(r.URL.Host, at.Host) {
				return next.HandleDeserialize(ctx, in)
			}
			response, metadata, err := send.Handle(ctx, in.Request)
			return middleware.DeserializeOutput{RawResponse: response}, metadata, err
		}), middleware.After)
	}, nil
}

// anyCertificate is a transport to one endpoint that takes any certificate of it. A proxy on the way
// that speaks TLS itself has to have a good one.
func anyCertificate(endpoint *url.URL) *http.Transport {
	transport := awshttp.NewBuildableClient().GetTransport()
	verified := tls.Config{MinVersion: tls.VersionTLS12}
	unverified := verified.Clone()
	unverified.InsecureSkipVerify = true //nolint:gosec // as it is configured
	// Of a connection within another, which net/http makes through a proxy, to the endpoint alone.
	transport.TLSClientConfig = unverified
	dial := transport.DialContext
	transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		plain, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		cfg := verified.Clone()
		if strings.EqualFold(host, endpoint.Hostname()) && port == cmp.Or(endpoint.Port(), "443") {
			cfg = unverified.Clone()
		}
		cfg.ServerName = host
		conn := tls.Client(plain, cfg)
		ctx, cancel := context.WithTimeout(ctx, transport.TLSHandshakeTimeout) // which net/http leaves to such a dialer
		defer cancel()
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = plain.Close() // the handshake has failed for a better reason
			return nil, err
		}
		return conn, nil
	}
	return transport
}

// bounded cuts off answers that are too long.
type bounded struct{ client ec2.HTTPClient }

func (b bounded) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		// The SDK closes the body once there is an answer. Its WriteTo then ends with EOF, which
		// net/http, where it still looks for more of the body, takes for an error: it breaks the
		// connection, and with it the answer. Without WriteTo it reads, and EOF is an end.
		sent := *r
		sent.Body = struct{ io.ReadCloser }{r.Body}
		r = &sent
	}
	resp, err := b.client.Do(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}
