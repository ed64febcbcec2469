package cloudconfig

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	byRuncmd   = "runcmd"
	byFiles    = "write_files, or runcmd"
	byHostname = "hostname"
	byUsers    = "users"
)

// others are the top-level keys of cloud-init (its reference of modules, and of base
// configuration, release 25.3) that Kip does not carry out, and what to use instead.
var others = map[string]string{
	"ansible": byRuncmd, "apk_repos": byFiles, "apt": byFiles, "apt_pipelining": byFiles, "autoinstall": "", "bootcmd": byRuncmd,
	"byobu_by_default": "", "ca_certs": byFiles, "chef": byRuncmd, "chpasswd": "users[].passwd", "cloud_config_modules": "",
	"cloud_final_modules": "", "cloud_init_modules": "", "create_hostname_file": "", "datasource": "", "datasource_list": "", "debug": "",
	"device_aliases": "", "disable_ec2_metadata": "", "disable_root": "", "disable_root_opts": "ssh_authorized_keys", "disk_setup": byRuncmd,
	"drivers": byRuncmd, "fan": "", "final_message": "", "fqdn": byHostname, "fs_setup": byRuncmd, "growpart": "", "grub_dpkg": "",
	"keyboard": byFiles, "landscape": byRuncmd, "launch_index": "", "locale": byFiles, "locale_configfile": byFiles, "lxd": "",
	"manage_etc_hosts": byFiles, "manage_resolv_conf": byFiles, "mcollective": "", "merge_how": "", "merge_type": "",
	"mount_default_fields": byRuncmd, "mounts": byRuncmd, "network": "", "no_ssh_fingerprints": "", "ntp": byFiles, "output": "",
	"package_reboot_if_required": "", "package_update": byRuncmd, "package_upgrade": byRuncmd, "packages": byRuncmd,
	"password": "users[].passwd", "phone_home": byRuncmd, "power_state": "", "prefer_fqdn_over_hostname": byHostname,
	"preserve_hostname": byHostname, "puppet": byRuncmd, "random_seed": byFiles, "reporting": "", "resize_rootfs": "", "resolv_conf": byFiles,
	"rh_subscription": byRuncmd, "rsyslog": byFiles, "salt_minion": byRuncmd, "snap": byRuncmd, "spacewalk": byRuncmd,
	"ssh": byFiles, "ssh_deletekeys": byRuncmd, "ssh_fp_console_blacklist": "", "ssh_genkeytypes": byRuncmd,
	"ssh_import_id": "ssh_authorized_keys", "ssh_key_console_blacklist": "", "ssh_keys": byFiles, "ssh_publish_hostkeys": "",
	"ssh_pwauth": byFiles, "ssh_quiet_keygen": "", "swap": byRuncmd, "syslog_fix_perms": "", "system_info": "", "timezone": byFiles,
	"ubuntu_advantage": byRuncmd, "ubuntu_pro": byRuncmd, "unverified_modules": "", "updates": "", "user": byUsers, "vendor_data": "",
	"version": "", "wireguard": byFiles, "yum_repo_dir": byFiles, "yum_repos": byFiles, "zypper": byFiles,
}

// otherUserKeys are those of users that Kip does not carry out.
var otherUserKeys = map[string]string{
	"plain_text_passwd": "passwd, with a hash as openssl passwd -6 makes it", "ssh_import_id": "ssh_authorized_keys",
	"ssh_import_github_user": "ssh_authorized_keys", "coreos_ssh_import_github": "ssh_authorized_keys", "ssh_redirect_user": "",
	"expiredate": byRuncmd, "inactive": byRuncmd, "selinux_user": byRuncmd, "snapuser": byRuncmd, "doas": byFiles,
	"create_groups": "groups",
}

var (
	// label is one of a host name (RFC 1123).
	label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	// login is what shadow's useradd and groupadd take by default.
	login = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	// number is a user's or a group's ID.
	number = regexp.MustCompile(`^(0|[1-9][0-9]{0,8})$`)
	// crypted is a hash as crypt(5) describes: $ID$…
	crypted = regexp.MustCompile(`^\$[a-z0-9]{1,8}\$[][./A-Za-z0-9$=,+_-]{8,500}$`)
)

func (r *reader) hostname(key string, n *yaml.Node, d *Document) {
	name, is := r.text(key, n)
	if !is {
		return
	}
	bad := len(name) > MaxHostname
	for part := range strings.SplitSeq(name, ".") {
		bad = bad || !label.MatchString(part)
	}
	if bad {
		r.fail(n.Line, key, "%.70q is not valid: want at most %d lower-case letters, digits, dashes and dots, a letter or digit beside each dot and at both ends",
			name, MaxHostname)
		return
	}
	r.once(n, key, "hostname")
	d.Hostname = name
}

// name reads a user's or a group's name.
func (r *reader) name(key string, n *yaml.Node) (string, bool) {
	s, is := r.text(key, n)
	if is && !login.MatchString(s) {
		r.fail(n.Line, key, "%.40q is not valid: want at most 32 lower-case letters, digits, dashes and underscores, a letter or underscore first", s)
		return "", false
	}
	return s, is
}

// names reads a list of them, or one text with commas.
func (r *reader) names(key string, n *yaml.Node) (list []string) {
	add := func(key string, n *yaml.Node) {
		if s, is := r.name(key, n); is {
			list = append(list, s)
		}
	}
	if n.Kind != yaml.ScalarNode {
		r.items(key, n, "names", add)
		return list
	}
	for s := range strings.SplitSeq(n.Value, ",") {
		one := *n
		one.Value = strings.TrimSpace(s)
		add(key, &one)
	}
	return list
}

func (r *reader) groups(key string, n *yaml.Node, d *Document) {
	add := func(key string, n *yaml.Node, members []string) {
		if name, is := r.name(key, n); is {
			r.once(n, key, "group "+name)
			d.Groups = append(d.Groups, Group{Name: name, Members: members})
		}
	}
	one := func(key string, n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			add(key, n, nil)
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := join(key, shownKey(n.Content[i].Value))
			if members := n.Content[i+1]; isNull(members) {
				add(at, n.Content[i], nil)
			} else {
				add(at, n.Content[i], r.names(at, members))
			}
		}
	}
	if n.Kind == yaml.MappingNode {
		one(key, n)
		return
	}
	if n.Kind == yaml.ScalarNode {
		for _, name := range r.names(key, n) {
			r.once(n, key, "group "+name)
			d.Groups = append(d.Groups, Group{Name: name})
		}
		return
	}
	r.items(key, n, "groups, each a name, or a name with its members", one)
}

func (r *reader) users(key string, n *yaml.Node, d *Document) {
	r.items(key, n, "users", func(key string, n *yaml.Node) {
		if n.Kind == yaml.ScalarNode {
			if n.Value == "default" {
				r.fail(n.Line, key, "default is not taken, since Kip does not know an image's usual user: want name and what that user is to have")
				return
			}
			if name, is := r.name(key, n); is {
				r.once(n, key, "user "+name)
				d.Users = append(d.Users, User{Name: name})
			}
			return
		}
		if u, is := r.user(key, n); is {
			d.Users = append(d.Users, u)
		}
	})
}

func (r *reader) user(key string, n *yaml.Node) (u User, valid bool) {
	before := len(r.errs)
	text := func(to *string, read func(string, *yaml.Node) (string, bool)) field {
		return func(key string, n *yaml.Node) { *to, _ = read(key, n) }
	}
	flag := func(to *bool) field { return func(key string, n *yaml.Node) { *to = r.boolean(key, n) } }
	r.mapping(key, n, map[string]field{
		"name": func(key string, n *yaml.Node) {
			if u.Name, valid = r.name(key, n); valid {
				r.once(n, key, "user "+u.Name)
			}
		},
		"gecos":               text(&u.Gecos, r.gecos),
		"homedir":             text(&u.Home, r.path),
		"primary_group":       text(&u.PrimaryGroup, r.name),
		"shell":               text(&u.Shell, r.path),
		"uid":                 text(&u.UID, r.number),
		"passwd":              text(&u.PasswordHash, r.hash),
		"hashed_passwd":       text(&u.PasswordHash, r.hash),
		"groups":              func(key string, n *yaml.Node) { u.Groups = r.names(key, n) },
		"ssh_authorized_keys": func(key string, n *yaml.Node) { u.AuthorizedKeys = r.keys(key, n) },
		"sudo":                func(key string, n *yaml.Node) { u.Sudo = r.sudo(key, n) },
		"lock_passwd":         flag(&u.Locked),
		"no_create_home":      flag(&u.NoCreateHome),
		"no_user_group":       flag(&u.NoUserGroup),
		"no_log_init":         flag(&u.NoLogInit),
		"system":              flag(&u.System),
	}, otherUserKeys)
	if n.Kind == yaml.MappingNode && u.Name == "" && len(r.errs) == before {
		r.fail(n.Line, join(key, "name"), "it is missing")
	}
	if u.NoCreateHome && len(u.AuthorizedKeys) > 0 {
		r.fail(n.Line, join(key, "no_create_home"), "true is not valid with ssh_authorized_keys, which lie in that folder: want one of them")
	}
	return u, len(r.errs) == before
}

func (r *reader) gecos(key string, n *yaml.Node) (string, bool) {
	s, is := r.line(key, n)
	if is && strings.ContainsAny(s, ":") {
		r.fail(n.Line, key, "there is a colon in it: want none, as in /etc/passwd")
		return "", false
	}
	return s, is
}

func (r *reader) number(key string, n *yaml.Node) (string, bool) {
	s, is := r.text(key, n)
	if is && !number.MatchString(s) {
		r.fail(n.Line, key, "%.40q is not valid: want a decimal number of at most nine digits", s)
		return "", false
	}
	return s, is
}

// path reads an absolute path of a file.
func (r *reader) path(key string, n *yaml.Node) (string, bool) {
	s, is := r.line(key, n)
	switch {
	case !is:
		return "", false
	case !path.IsAbs(s), path.Clean(s) != s, s == "/", len(s) > 4096:
		r.fail(n.Line, key, "%.100q is not valid: want an absolute path without . and .. and without a slash at its end", s)
		return "", false
	case strings.Contains(s, ":"):
		r.fail(n.Line, key, "%.100q is not valid: want a path without a colon", s)
		return "", false
	}
	return s, true
}

func (r *reader) hash(key string, n *yaml.Node) (string, bool) {
	s, is := r.text(key, n)
	if is && !crypted.MatchString(s) { // without the value: it may be the password
		r.fail(n.Line, key, "the text of %d characters is no hash of a password: want one as openssl passwd -6 makes it", len(s))
		return "", false
	}
	return s, is
}

func (r *reader) keys(key string, n *yaml.Node) (list []string) {
	r.items(key, n, "SSH's public keys", func(key string, n *yaml.Node) {
		s, is := r.line(key, n)
		if !is {
			return
		}
		if len(strings.Fields(s)) < 2 || strings.Contains(s, "PRIVATE KEY") {
			r.fail(n.Line, key, "it is no public key of SSH: want a line of authorized_keys, such as ssh-ed25519 AAAA… somebody")
			return
		}
		list = append(list, strings.TrimSpace(s))
	})
	return list
}

func (r *reader) sudo(key string, n *yaml.Node) (rules []string) {
	if n.Kind == yaml.ScalarNode {
		if n.ShortTag() == "!!bool" {
			if r.boolean(key, n) {
				r.fail(n.Line, key, "true is not valid: want a rule such as ALL=(ALL) NOPASSWD:ALL, or false")
			}
			return nil
		}
		if s, is := r.line(key, n); is {
			rules = append(rules, s)
		}
		return rules
	}
	r.items(key, n, "rules of sudoers", func(key string, n *yaml.Node) {
		if s, is := r.line(key, n); is {
			rules = append(rules, s)
		}
	})
	return rules
}

func (r *reader) files(key string, n *yaml.Node, d *Document) {
	r.items(key, n, "files", func(key string, n *yaml.Node) {
		if f, is := r.oneFile(key, n); is {
			d.Files = append(d.Files, f)
		}
	})
}

// oneFile reads one file of write_files.
func (r *reader) oneFile(key string, n *yaml.Node) (File, bool) {
	f, before := File{User: "root", Group: "root", Mode: 0o644}, len(r.errs)
	var content, encoding string
	at := n // of the content
	r.mapping(key, n, map[string]field{
		"path":        func(key string, n *yaml.Node) { f.Path, _ = r.path(key, n) },
		"content":     func(key string, n *yaml.Node) { at = n; content = r.content(key, n) },
		"encoding":    func(key string, n *yaml.Node) { encoding = r.encoding(key, n) },
		"owner":       func(key string, n *yaml.Node) { f.User, f.Group = r.owner(key, n) },
		"permissions": func(key string, n *yaml.Node) { f.Mode = r.permissions(key, n) },
		"append":      func(key string, n *yaml.Node) { f.Append = r.boolean(key, n) },
		// Files are written when users are there: as if all had it.
		"defer": func(key string, n *yaml.Node) { r.boolean(key, n) },
	}, map[string]string{"source": "content"})
	if len(r.errs) > before {
		return f, false
	}
	if f.Path == "" {
		r.fail(n.Line, join(key, "path"), "it is missing")
		return f, false
	}
	var err error
	if f.Content, err = decode(content, encoding, r.left); err != nil {
		r.fail(at.Line, join(key, "content"), "%v", err)
		return f, false
	}
	r.left -= len(f.Content)
	return f, true
}

// content reads a text, or bytes by YAML's own tag for them.
func (r *reader) content(key string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!binary" {
		s, _ := r.text(key, n)
		return s
	}
	data, err := decode(n.Value, inBase64, MaxContent)
	if err != nil {
		r.fail(n.Line, key, "%v", err)
	}
	return string(data)
}

// What a file's content is encoded by.
const (
	inPlain  = "plain"
	inBase64 = "base64"
	inGzip   = "gzip"
	inBoth   = "gzip+base64"
)

// encodings are cloud-init's names of them.
var encodings = map[string]string{
	"": inPlain, "plain": inPlain, "text/plain": inPlain, "b64": inBase64, "base64": inBase64, "gz": inGzip, "gzip": inGzip,
	"gz+b64": inBoth, "gz+base64": inBoth, "gzip+b64": inBoth, "gzip+base64": inBoth,
}

func (r *reader) encoding(key string, n *yaml.Node) string {
	s, is := r.text(key, n)
	known, has := encodings[strings.ToLower(strings.TrimSpace(s))]
	if is && !has {
		r.fail(n.Line, key, "%.40q is not valid: want text/plain, base64, gzip or gzip+base64", s)
	}
	return known
}

var (
	errBase64  = errors.New("it is no valid base64")
	errGzip    = errors.New("it is no valid gzip")
	errContent = errors.New("the files have more than the 1 MiB together that is allowed")
)

// decode returns a content as it is to be written, of at most limit bytes.
func decode(content, encoding string, limit int) ([]byte, error) {
	data := []byte(content)
	if encoding == inBase64 || encoding == inBoth {
		plain, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(content), ""))
		if err != nil {
			return nil, errBase64
		}
		data = plain
	}
	if encoding == inGzip || encoding == inBoth {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, errGzip
		}
		if data, err = io.ReadAll(io.LimitReader(z, int64(limit)+1)); err != nil {
			return nil, errGzip
		}
	}
	if len(data) > limit {
		return nil, errContent
	}
	return data, nil
}

func (r *reader) owner(key string, n *yaml.Node) (user, group string) {
	s, is := r.text(key, n)
	if !is {
		return "", ""
	}
	user, group, both := strings.Cut(s, ":")
	valid := func(s string) bool { return login.MatchString(s) || number.MatchString(s) }
	if !both {
		group = user
	}
	if !valid(user) || !valid(group) {
		r.fail(n.Line, key, "%.70q is not valid: want USER:GROUP, each a name or a number", s)
	}
	return user, group
}

func (r *reader) permissions(key string, n *yaml.Node) fs.FileMode {
	s, is := r.text(key, n)
	if !is {
		return 0
	}
	bits, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || bits > 0o7777 {
		r.fail(n.Line, key, "%.40q is not valid: want octal digits such as 0644", s)
	}
	mode := fs.FileMode(bits & 0o777)
	for bit, m := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= m
		}
	}
	return mode
}

func (r *reader) runcmd(key string, n *yaml.Node) {
	r.items(key, n, "commands, each a line of a shell or a list of its words", func(key string, n *yaml.Node) {
		if n.Kind == yaml.ScalarNode {
			if s, is := r.text(key, n); is {
				r.commands = append(r.commands, s)
			}
			return
		}
		var words []string
		r.items(key, n, "words", func(key string, n *yaml.Node) {
			if s, is := r.text(key, n); is {
				words = append(words, "'"+strings.ReplaceAll(s, "'", `'\''`)+"'")
			}
		})
		if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			r.fail(n.Line, key, "the list is empty: want the words of a command")
		}
		r.commands = append(r.commands, strings.Join(words, " "))
	})
}
