package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/doctor"
)

// mostExplained is how many pods that wait a bundle explains.
const mostExplained = 10

// bundle writes a file with what a bug report needs. Without a cluster d is nil.
func (k *kipctl) bundle(ctx context.Context, file string, d *doctor.Doctor, r doctor.Report, kips []examined) error {
	report, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	secrets := []string{os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN")}
	for _, one := range kips {
		secrets = append(secrets, secretsOf(one.cfg)...)
	}
	redact := doctor.NewRedactor(secrets...)
	files := []doctor.File{{Name: "doctor.json", Data: report}}
	for _, one := range kips {
		name := "provider.yaml"
		if one.name != "" {
			name = "provider-" + strings.ReplaceAll(one.name, "/", "-") + ".yaml"
		}
		if one.provider != nil {
			files = append(files, doctor.File{Name: name, Data: redact.YAML(one.provider)})
		}
	}
	commands := []string{"version"}
	if d != nil {
		files = append(files, d.Files(ctx, k.sayNow)...)
		commands = append(commands, "get cells --output=json", "get pods --all-namespaces", "get standby", "get capacity")
		for n, p := range d.Waiting() {
			if n == mostExplained {
				break
			}
			commands = append(commands, "why "+p.Namespace+"/"+p.Name)
		}
	}
	for _, command := range commands {
		files = append(files, k.outputOf(ctx, command))
	}
	folder := "kip-bundle-" + r.Time.Format("20060102-150405")
	if err := writeWhole(file, func(w io.Writer) error { return doctor.WriteBundle(w, folder, r.Time, files, redact) }); err != nil {
		return err
	}
	fmt.Fprintf(k.err, "Wrote %s, %d files, which only you can read. Read them before you share them: tar xzf %s\n", file, len(files), file)
	return nil
}

// secretsOf are those of a configuration.
func secretsOf(cfg *config.Config) []string {
	if cfg == nil || cfg.Cloud.AWS == nil {
		return nil
	}
	return []string{cfg.Cloud.AWS.AccessKeyID.Reveal(), cfg.Cloud.AWS.SecretAccessKey.Reveal()}
}

// outputOf is what another command of kipctl prints, or why it fails.
func (k *kipctl) outputOf(ctx context.Context, command string) doctor.File {
	k.sayNow("bundle: kipctl " + command)
	args := strings.Fields(command)
	named := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, "-") })
	name := "kipctl-" + strings.ReplaceAll(strings.Join(named, "-"), "/", "-") + ".txt"
	var out bytes.Buffer
	sub := *k
	sub.out, sub.err = &out, &out
	root := newRoot(&sub, "kipctl")
	for flag, value := range map[string]string{"--kubeconfig": k.kubeconfig, "--context": k.context, "--socket": k.socket} {
		if value != "" {
			args = append(args, flag+"="+value)
		}
	}
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(&out, "kipctl failed:", err)
	}
	return doctor.File{Name: name, Data: out.Bytes()}
}

// writeWhole writes a file that only its owner reads under another name, and gives it its own when it is whole and on the disk.
func writeWhole(file string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
