package aws

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// metadataPatience bounds what New asks the metadata service, which answers in
// milliseconds where there is one.
const metadataPatience = 3 * time.Second

// whereabouts are those of the instance that Kip runs on; empty where it is on none.
type whereabouts struct {
	region, vpc, subnet string
	groups              []string
}

// whereIsKip asks the metadata service.
func whereIsKip(ctx context.Context, endpoint string) (here whereabouts, err error) {
	ctx, cancel := context.WithTimeout(ctx, metadataPatience)
	defer cancel()
	service := imds.New(imds.Options{Endpoint: endpoint, Retryer: aws.NopRetryer{}})
	read := func(path string) string {
		if err != nil {
			return ""
		}
		var out *imds.GetMetadataOutput
		if out, err = service.GetMetadata(ctx, &imds.GetMetadataInput{Path: path}); err != nil {
			return ""
		}
		defer out.Content.Close()
		var text []byte
		text, err = io.ReadAll(io.LimitReader(out.Content, 1<<10))
		return strings.TrimSpace(string(text))
	}
	region := read("placement/region")
	mac := "network/interfaces/macs/" + read("mac") + "/"
	here = whereabouts{
		region: region,
		vpc:    read(mac + "vpc-id"),
		subnet: read(mac + "subnet-id"),
		groups: strings.Fields(read(mac + "security-group-ids")),
	}
	if err != nil {
		return whereabouts{}, fmt.Errorf("ask the metadata service where Kip runs: %w", err)
	}
	return here, nil
}
