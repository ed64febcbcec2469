package aws

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/elotl/kip/internal/cloud"
)

// consoles reads what machines say as they boot.
type consoles struct{ *base }

// Console implements cloud.Console. EC2 keeps the last 64 KiB.
func (e *consoles) Console(ctx context.Context, id string) ([]byte, error) {
	out, err := e.api.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: aws.String(id), Latest: aws.Bool(true)})
	if err != nil {
		return nil, fmt.Errorf("read the console of %s: %w", id, classify(err, cloud.Scope{}))
	}
	text, err := base64.StdEncoding.DecodeString(aws.ToString(out.Output))
	if err != nil {
		return nil, fmt.Errorf("read the console of %s: %w", id, err)
	}
	return text, nil
}
