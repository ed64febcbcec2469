package agentapi

import (
	"fmt"
	"io"
	"log/slog"
	"time"
)

// PathImageCredentials is part of the API that Kip serves to a cell. It takes an
// ImageRequest by POST, and answers with ImageCredentials: 403 where the cell's pod does not
// name the image, 503 where the cloud gives none, with a Status that says what is known.
const PathImageCredentials = "/apis/kip.elotl.co/v1/imagecredentials"

// MaxImage bounds the name of an image in bytes: a host of 253, a path of 255 and a tag or a
// digest.
const MaxImage = 1 << 10

// ImageRequest asks for what pulls an image.
type ImageRequest struct {
	// Image is its name, with or without a tag or a digest.
	Image string `json:"image"`
}

// ImageCredentials pull an image. What prints or logs them shows no password; what
// marshals them does, for the tunnel.
type ImageCredentials struct {
	Username string `json:"username"`
	Password string `json:"password"`
	// KeepFor is how long they may be kept, in nanoseconds. 0 is not at all.
	KeepFor time.Duration `json:"keepFor"`
}

func (c ImageCredentials) String() string { return c.Username + ":***" }

// Format prints String, whatever the verb.
func (c ImageCredentials) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue is for log/slog.
func (c ImageCredentials) LogValue() slog.Value { return slog.StringValue(c.String()) }
