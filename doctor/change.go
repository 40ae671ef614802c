package doctor

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strings"
)

// Command is the command line of a POSIX shell that makes the change, as whoever
// has the right to. Limits of a process it changes in that shell, for what is
// started there.
func (c Change) Command() string {
	switch c.Kind {
	case Sysctl:
		return "sysctl -w " + c.Name + "=" + quote(c.To)
	case Nofile:
		return limitCommand("n", 1, c.From, c.To)
	case Memlock:
		return limitCommand("l", 1024, c.From, c.To)
	case Link:
		return "ip link set " + quote(c.Name) + " " + c.To
	case Address:
		if c.To == "" {
			return "ip addr del " + c.From + " dev " + quote(c.Name)
		}
		return "ip addr add " + c.To + " dev " + quote(c.Name)
	case Cgroup:
		return "echo " + quote(c.To) + " > " + quote(c.Name)
	}
	return ""
}

// String says what changes, as "net.core.somaxconn: 4096 -> 65535".
func (c Change) String() string {
	return fmt.Sprintf("%s: %s -> %s", c.title(), orNone(c.From), orNone(c.To))
}

// ofShell says whether the change is of the shell in which it is made, and of what is
// started there.
func (c Change) ofShell() bool { return c.Kind == Nofile || c.Kind == Memlock }

// title names the setting.
func (c Change) title() string {
	switch c.Kind {
	case Nofile, Memlock:
		if c.Name != "" && c.Name != string(c.Kind) {
			return string(c.Kind) + " of " + c.Name // as Apply names it
		}
		return string(c.Kind)
	case Link, Address:
		return string(c.Kind) + " " + c.Name
	}
	return c.Name
}

func orNone(value string) string {
	if value == "" {
		return "none"
	}
	return value
}

// plain is what a shell takes as it is.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:,+@%-]+$`)

// quote writes a word of a shell's command line.
func quote(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// sysctlName is how a setting of the kernel can be called: no part of it leaves
// /proc/sys.
var sysctlName = regexp.MustCompile(`^[a-z0-9_-]+(\.[A-Za-z0-9_-]+)+$`)

// check says what is wrong with a change.
func (c Change) check() error {
	want := ""
	switch c.Kind {
	case Sysctl:
		if !sysctlName.MatchString(c.Name) {
			want = "the name of a kernel setting, such as net.core.somaxconn"
		}
	case Nofile, Memlock:
		if _, err := parseRlimit(c.To); err != nil {
			return err
		}
	case Link:
		if c.To != "up" && c.To != "down" {
			return fmt.Errorf("the state %q; expected up or down", c.To)
		}
	case Address:
		return c.checkAddress()
	case Cgroup:
		if !strings.HasPrefix(c.Name, cgroupRoot) || path.Clean(c.Name) != c.Name {
			want = "the path of a file below " + cgroupRoot
		}
	default:
		return fmt.Errorf("the kind %q; expected one of sysctl, nofile, memlock, link, address, cgroup", c.Kind)
	}
	if want != "" {
		return fmt.Errorf("the name %q; expected %s", c.Name, want)
	}
	return nil
}

// checkAddress is check for an address, which is removed if To is empty.
func (c Change) checkAddress() error {
	text := c.To
	if text == "" {
		text = c.From
	}
	if _, err := parsePrefix(text); err != nil {
		return fmt.Errorf("the address %q; expected one such as 10.0.0.2/24", text)
	}
	return nil
}

// parsePrefix reads an address with the length of its network, which is the
// address alone if it is not said.
func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

const cgroupRoot = "/sys/fs/cgroup/"
