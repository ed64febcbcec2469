package cloudconfig

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

const hash = "$6$saltsalt$0123456789abcdefghij./ABCDEFGH"

// whole has each key that Kip carries out.
const whole = `#cloud-config
hostname: cell.example
groups:
  - admins
  - builders: [ann, bob]
users:
  - name: ann
    gecos: Ann Other
    homedir: /home/ann
    primary_group: builders
    groups: admins, wheel
    shell: /bin/bash
    uid: 1500
    passwd: ` + hash + `
    lock-passwd: false
    sudo: ALL=(ALL) NOPASSWD:ALL
    ssh-authorized-keys: [ssh-ed25519 AAAA ann]
  - name: bob
    no_create_home: true
    no_user_group: true
    no_log_init: true
    system: true
    lock_passwd: true
    sudo: [ALL=/bin/ls, ALL=/bin/ps]
  - carl
ssh_authorized_keys:
  - ssh-rsa BBBB root
write_files:
  - path: /etc/plain
    content: |
      a line
  - path: /etc/b64
    encoding: b64
    content: aGVs
      bG8=
    owner: ann:builders
    permissions: 04750
    append: true
    defer: true
  - path: /etc/gz
    encoding: gz
    content: !!binary |
      GZ64
  - path: /etc/both
    encoding: gzip+base64
    content: GZ64
    permissions: '0600'
    owner: 1000:1000
runcmd:
  - echo "$HOME"
  - [echo, it's, 5]
`

func gz(s string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(s))
	w.Close()
	return b.Bytes()
}

func text(s string) []byte {
	return []byte(strings.ReplaceAll(s, "GZ64", base64.StdEncoding.EncodeToString(gz("squeezed"))))
}

func TestEachKeyMeansWhatCloudInitMeansByIt(t *testing.T) {
	got, err := Parse("f", text(whole))
	if err != nil {
		t.Fatal(err)
	}
	want := &Document{
		Hostname: "cell.example",
		Groups:   []Group{{Name: "admins"}, {Name: "builders", Members: []string{"ann", "bob"}}},
		Users: []User{
			{
				Name:           "ann",
				Gecos:          "Ann Other",
				Home:           "/home/ann",
				PrimaryGroup:   "builders",
				Groups:         []string{"admins", "wheel"},
				Shell:          "/bin/bash",
				UID:            "1500",
				PasswordHash:   hash,
				Sudo:           []string{"ALL=(ALL) NOPASSWD:ALL"},
				AuthorizedKeys: []string{"ssh-ed25519 AAAA ann"},
			},
			{
				Name:         "bob",
				NoCreateHome: true,
				NoUserGroup:  true,
				NoLogInit:    true,
				System:       true,
				Locked:       true,
				Sudo:         []string{"ALL=/bin/ls", "ALL=/bin/ps"},
			},
			{Name: "carl"},
		},
		AuthorizedKeys: []string{"ssh-rsa BBBB root"},
		Files: []File{
			{Path: "/etc/plain", Content: []byte("a line\n"), User: "root", Group: "root", Mode: 0o644},
			{Path: "/etc/b64", Content: []byte("hello"), User: "ann", Group: "builders", Mode: 0o750 | os.ModeSetuid, Append: true},
			{Path: "/etc/gz", Content: []byte("squeezed"), User: "root", Group: "root", Mode: 0o644},
			{Path: "/etc/both", Content: []byte("squeezed"), User: "1000", Group: "1000", Mode: 0o600},
		},
		Scripts: []Script{{Name: "runcmd", Content: []byte("#!/bin/sh\necho \"$HOME\"\n'echo' 'it'\\''s' '5'\n")}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if needs := got.NeedsLogin(); needs != "groups, ssh_authorized_keys, users" {
		t.Errorf("a login is needed by %q", needs)
	}
	if d, err := Parse("f", []byte("#cloud-config\nruncmd: [ls]\nhostname: a\n")); err != nil || d.NeedsLogin() != "" {
		t.Errorf("a file without users needs a login: %q, %v", d.NeedsLogin(), err)
	}
}

func TestAFileHasFormsOfUserData(t *testing.T) {
	const config, script = "#cloud-config\r\nhostname: one\nruncmd: [a]\n", "#!/bin/bash\nexit 0\n"
	several := "Content-Type: multipart/mixed; boundary=\"==b==\"\nMIME-Version: 1.0\n\n--==b==\n" +
		"Content-Type: text/cloud-config; charset=\"us-ascii\"\n\n" + config + "\n--==b==\n" +
		"Content-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n" +
		base64.StdEncoding.EncodeToString([]byte(script)) + "\n--==b==\n" +
		"Content-Type: text/cloud-config\n\nruncmd: [b]\n--==b==\n" +
		"Content-Type: application/gzip\nContent-Transfer-Encoding: base64\n\n" +
		base64.StdEncoding.EncodeToString(gz("#cloud-config\nruncmd: [c]\n")) + "\n--==b==--\n"
	for name, test := range map[string]struct {
		data    []byte
		host    string
		scripts []string
	}{
		"a cloud-config":                    {[]byte(config), "one", []string{"#!/bin/sh\na\n"}},
		"a compressed one":                  {gz(config), "one", []string{"#!/bin/sh\na\n"}},
		"a script":                          {[]byte(script), "", []string{script}},
		"a compressed script":               {gz(script), "", []string{script}},
		"several parts":                     {[]byte(several), "one", []string{"#!/bin/sh\na\nb\nc\n", script}},
		"several parts, compressed":         {gz(several), "one", []string{"#!/bin/sh\na\nb\nc\n", script}},
		"only comments":                     {[]byte("#cloud-config\n# nothing\n"), "", nil},
		"a cloud-config that says nothing":  {[]byte("#cloud-config\n---\n"), "", nil},
		"a mapping without a key":           {[]byte("#cloud-config\n{}\n"), "", nil},
		"groups by one text, and a mapping": {[]byte("#cloud-config\ngroups: a, b\n"), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Parse("f", test.data)
			if err != nil {
				t.Fatal(err)
			}
			var scripts []string
			for _, s := range d.Scripts {
				scripts = append(scripts, string(s.Content))
			}
			if d.Hostname != test.host || !reflect.DeepEqual(scripts, test.scripts) {
				t.Errorf("host %q, scripts %q", d.Hostname, scripts)
			}
		})
	}
}

func TestWhatIsWrongIsToldWithLineKeyAndWhatWouldBeRight(t *testing.T) {
	many := "a: &a [x]\nb: &b [*a, *a]\nruncmd: [*b, *b]"
	for name, test := range map[string]struct{ text, want string }{
		"unknown key":      {"runcmds: [ls]", "f:2: runcmds: no such key; did you mean runcmd?"},
		"unknown key, far": {"zzzzzzz: 1", "f:2: zzzzzzz: no such key: want one of groups, hostname, "},
		"kip's own key":    {"kip: {token: sesame}", "f:2: kip: no such key"},
		"real key":         {"packages: [vim]", "f:2: packages: Kip does not carry out this key of cloud-init: want runcmd"},
		"real key, no other": {"phone-home-x: 1\npower_state: {}",
			"f:3: power_state: Kip does not carry out this key of cloud-init: want none"},
		"chpasswd":             {"chpasswd: {}", "want users[].passwd"},
		"twice":                {"runcmd: [a]\nruncmd: [b]", "f:3: runcmd: this key is there twice: first on line 2"},
		"no value":             {"hostname:", "f:2: hostname: there is no value"},
		"host name":            {"hostname: A_b", `f:2: hostname: "A_b" is not valid: want at most 64`},
		"long host name":       {"hostname: " + strings.Repeat("a", 65), "is not valid: want at most 64"},
		"no list":              {"runcmd: ls", "f:2: runcmd: a text is not valid: want a list of commands"},
		"command is a mapping": {"runcmd:\n- {a: b}", "f:3: runcmd[0]: a mapping is not valid: want a list of words"},
		"command is empty":     {"runcmd: [[]]", "f:2: runcmd[0]: the list is empty"},
		"command is null":      {"runcmd:\n-\n", "f:3: runcmd[0]: there is no value"},
		"word is a list":       {"runcmd: [[a, [b]]]", "f:2: runcmd[0][1]: a list is not valid: want a text"},
		"user without a name":  {"users: [{shell: /bin/sh}]", "f:2: users[0].name: it is missing"},
		"bad user":             {"users: [{name: 'a:b'}]", `f:2: users[0].name: "a:b" is not valid`},
		"default user":         {"users: [default]", "f:2: users[0]: default is not taken"},
		"user twice":           {"users: [{name: a},\n a]", "f:3: users[1]: user a is there twice: first in f, line 2"},
		"group twice":          {"groups: [a, a]", "f:2: groups[1]: group a is there twice"},
		"plain password":       {"users: [{name: a, plain_text_passwd: sesame}]", "users[0].plain_text_passwd: Kip does not carry out"},
		"password is no hash": {"users: [{name: a, passwd: sesame}]",
			"f:2: users[0].passwd: the text of 6 characters is no hash of a password"},
		"unknown user key":   {"users: [{name: a, shel: /bin/sh}]", "f:2: users[0].shel: no such key; did you mean users[0].shell?"},
		"no boolean":         {"users: [{name: a, system: sesame}]", "f:2: users[0].system: a text is not valid: want true or false"},
		"uid":                {"users: [{name: a, uid: -1}]", `f:2: users[0].uid: "-1" is not valid`},
		"relative shell":     {"users: [{name: a, shell: sh}]", `f:2: users[0].shell: "sh" is not valid: want an absolute path`},
		"gecos with a colon": {"users: [{name: a, gecos: 'a:0'}]", "f:2: users[0].gecos: there is a colon"},
		"gecos of two lines": {"users: [{name: a, gecos: \"a\\nroot::0\"}]", "f:2: users[0].gecos: it is empty, or has a line break"},
		"sudo: true":         {"users: [{name: a, sudo: true}]", "f:2: users[0].sudo: true is not valid"},
		"sudo of two lines":  {"users: [{name: a, sudo: \"ALL\\nx\"}]", "f:2: users[0].sudo: it is empty, or has a line break"},
		"keys without a home": {"users: [{name: a, no_create_home: true, ssh_authorized_keys: [a b]}]",
			"users[0].no_create_home: true is not valid"},
		"no key": {"ssh_authorized_keys: [sesame]", "f:2: ssh_authorized_keys[0]: it is no public key of SSH"},
		"private key": {"ssh_authorized_keys: ['-----BEGIN PRIVATE KEY----- sesame']",
			"f:2: ssh_authorized_keys[0]: it is no public key of SSH"},
		"file without a path": {"write_files: [{content: sesame}]", "f:2: write_files[0].path: it is missing"},
		"relative path":       {"write_files: [{path: a/b}]", `f:2: write_files[0].path: "a/b" is not valid`},
		"path that climbs":    {"write_files: [{path: /a/../b}]", `f:2: write_files[0].path: "/a/../b" is not valid`},
		"encoding":            {"write_files: [{path: /a, encoding: rot13}]", `f:2: write_files[0].encoding: "rot13" is not valid`},
		"no base64": {"write_files:\n- path: /a\n  encoding: b64\n  content: sesame!",
			"f:5: write_files[0].content: it is no valid base64"},
		"no gzip": {"write_files:\n- path: /a\n  encoding: gz+b64\n  content: c2VzYW1l",
			"f:5: write_files[0].content: it is no valid gzip"},
		"permissions":           {"write_files: [{path: /a, permissions: 0899}]", `f:2: write_files[0].permissions: "0899" is not valid`},
		"permissions too large": {"write_files: [{path: /a, permissions: '010000'}]", `"010000" is not valid`},
		"owner":                 {"write_files: [{path: /a, owner: 'a:b:c'}]", `f:2: write_files[0].owner: "a:b:c" is not valid`},
		"source":                {"write_files: [{path: /a, source: {}}]", "write_files[0].source: Kip does not carry out"},
		"alias":                 {many, "f:2: anchors and aliases (& and *) are not taken"},
		"second document":       {"hostname: a\n---\nhostname: b", "a second document begins here"},
		"no YAML":               {"hostname: a\nusers:\n\t- sesame", "f:4: no valid YAML"},
		"a list":                {"- a", "f:2: a list is not valid: want keys and values"},
		"zero byte":             {"runcmd: [\"a\\0b\"]", "there is a zero byte"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("f", []byte("#cloud-config\n"+test.text+"\n"))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if strings.Contains(err.Error(), "sesame") {
				t.Errorf("the error may quote a secret: %v", err)
			}
		})
	}
	_, err := Parse("f", []byte("#cloud-config\nhostname: _\nruncmd: 1\nzzzzzz: 1\n"))
	if n := strings.Count(fmt.Sprint(err), "\n"); n != 2 {
		t.Errorf("all that is wrong is told at once: %v", err)
	}
}

func TestWhatIsNoUserDataIsRefused(t *testing.T) {
	part := func(head, body string) string {
		return "Content-Type: multipart/mixed; boundary=b\n\n--b\n" + head + "\n" + body + "\n--b--\n"
	}
	bomb := string(gz(strings.Repeat("#", MaxContent+2)))
	for name, test := range map[string]struct{ data, want string }{
		"nothing":             {"", "the first line is neither #cloud-config nor an interpreter"},
		"YAML without a mark": {"hostname: a\n", "the first line is neither"},
		"an include":          {"#include\nhttp://h/\n", "#include is a kind of cloud-init that Kip does not carry out"},
		"a template":          {"## template: jinja\n#cloud-config\n", "## template: is a kind"},
		"a boothook":          {"#cloud-boothook\n", "#cloud-boothook is a kind"},
		"too large":           {"#!" + strings.Repeat("x", MaxBytes), "want at most 65536"},
		"a bomb":              {bomb, "it unpacks to more than the 1048576 bytes that are allowed"},
		"cut off gzip":        {string(gz("#!/bin/sh"))[:15], "it is not valid gzip"},
		"no boundary":         {"Content-Type: text/plain\n\nx", "want multipart/mixed with a boundary"},
		"bad headers":         {"Content-Type: multipart/mixed; boundary=b\nnonsense", "the headers of MIME are not valid"},
		"no parts":            {"Content-Type: multipart/mixed; boundary=b\n\n--b--\n", "there is no part between the boundaries"},
		"cut off parts":       {"Content-Type: multipart/mixed; boundary=b\n\n--b\n\n#!/bin/sh\n", "f:1: part 1: it is cut off"},
		"an encoding":         {part("Content-Transfer-Encoding: uuencode\n", "x"), "part 1: Content-Transfer-Encoding is not valid"},
		"no base64":           {part("Content-Transfer-Encoding: base64\n", "x!"), "part 1: it is cut off, or not in the encoding"},
		"another kind":        {part("Content-Type: text/x-include-url\n", "http://h"), "part 1: the first line is neither"},
		"another kind's mark": {part("Content-Type: text/jinja2\n", "#!/bin/sh"), `part 1: Content-Type "text/jinja2" does not fit`},
		"a bad kind":          {part("Content-Type: ;\n", "#!/bin/sh"), "part 1: Content-Type is not valid"},
		"parts in a part":     {part("Content-Type: text/plain\n", part("", "#!/bin/sh")), "part 1: it is a multi-part document itself"},
		"an error in a part":  {part("", "#cloud-config\nhostname: _"), `f, part 1:2: hostname: "_" is not valid`},
		"many parts": {"Content-Type: multipart/mixed; boundary=b\n\n" + strings.Repeat("--b\n\n#!/bin/sh\n", 65) + "--b--\n",
			"more than 64 parts"},
		"two host names": {"Content-Type: multipart/mixed; boundary=b\n\n" + strings.Repeat("--b\n\n#cloud-config\nhostname: a\n", 2) + "--b--\n",
			"f, part 2:2: hostname: hostname is there twice: first in f, part 1, line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("f", []byte(test.data)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestContentsAreBoundedTogether(t *testing.T) {
	half := base64.StdEncoding.EncodeToString(gz(strings.Repeat("x", MaxContent/2)))
	file := "- {path: /a, encoding: gz+b64, content: " + half + "}\n"
	for n, fails := range map[int]bool{2: false, 3: true} {
		if _, err := Parse("f", []byte("#cloud-config\nwrite_files:\n"+strings.Repeat(file, n))); (err != nil) != fails {
			t.Errorf("%d halves of what is allowed: %v", n, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(text(whole))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Parse("f", data)
		if err != nil {
			return
		}
		size := 0
		for _, file := range d.Files {
			if size += len(file.Content); !strings.HasPrefix(file.Path, "/") || strings.Contains(file.Path, "/../") {
				t.Errorf("path %q", file.Path)
			}
		}
		if size > MaxContent {
			t.Errorf("%d bytes of contents", size)
		}
		for _, u := range d.Users {
			for _, s := range append([]string{u.Name, u.Gecos, u.Home, u.Shell, u.UID, u.PrimaryGroup, u.PasswordHash}, u.Groups...) {
				if strings.ContainsAny(s, ":\n") {
					t.Errorf("user %+v has what ends a field of /etc/passwd", u)
				}
			}
		}
	})
}

// What is larger than it may be is not unpacked to see by how much.
func TestABombIsUnpackedOnlyAsFarAsIsAllowed(t *testing.T) {
	const size = 48 << 20
	bomb := gz(strings.Repeat("#", size)) // about a thousandth of that
	content := base64.StdEncoding.EncodeToString(bomb[:MaxBytes/2])
	for what, data := range map[string][]byte{
		"the file":     bomb,
		"a part of it": []byte("Content-Type: multipart/mixed; boundary=b\n\n--b\n\n" + string(bomb) + "\n--b--\n"),
		"a content":    []byte("#cloud-config\nwrite_files:\n- {path: /a, encoding: gz+b64, content: " + content + "}\n"),
	} {
		if len(data) > MaxBytes {
			t.Fatalf("%s has %d bytes: it is refused before it is unpacked", what, len(data))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse("f", data)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > size/2 {
			t.Errorf("%s: %v; %d bytes were made of %d", what, err, took, len(data))
		}
	}
}
