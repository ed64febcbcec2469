package imageplugin

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asPlugin says in the environment that the test's own program is to be the plugin.
const asPlugin = "KIP_TEST_IMAGE_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		os.Exit(Run())
	}
	goleak.VerifyTestMain(m)
}
