package doctor

import (
	"fmt"
	"strings"
)

// This file has what is written for a machine: settings of its kernel, limits of
// logins and of services.

// sysctl writes a file as sysctl.d(5) has it.
func (l *lasting) sysctl() string {
	var out strings.Builder
	out.WriteString(l.head("sysctl",
		"Save it as /etc/sysctl.d/90-myriad.conf; `sysctl --system` reads it at once, and each start of the machine does."))
	conntrack := false
	for _, s := range l.sysctls {
		name := s.Name
		if strings.Contains(name, "nf_conntrack") {
			conntrack, name = true, "-"+name
		}
		fmt.Fprintf(&out, "\n# %s\n%s = %s\n", s.why, name, s.To)
	}
	if conntrack {
		out.WriteString("\n# Those of nf_conntrack are there once its module is: name nf_conntrack in\n" +
			"# /etc/modules-load.d/90-myriad.conf, so that it is loaded before this is read.\n")
	}
	if len(l.sysctls) == 0 {
		out.WriteString("\n# Nothing: what a kernel begins with is enough.\n")
	}
	return out.String()
}

// limits writes a file as limits.conf(5) has it. Its star does not mean root.
func (l *lasting) limits() string {
	var out strings.Builder
	out.WriteString(l.head("limits",
		"Save it as /etc/security/limits.d/90-myriad.conf; it holds from the next login on, and not for services."))
	if l.nofile > 1<<20 {
		fmt.Fprintf(&out, "# Without fs.nr_open = %d or more, which `--print sysctl` sets, logins fail.\n", l.nofile)
	}
	item := func(name, why string, value int64) {
		if value <= 0 {
			fmt.Fprintf(&out, "\n# %s: what every machine has is enough.\n", name)
			return
		}
		fmt.Fprintf(&out, "\n# %s\n", why)
		for _, who := range []string{"*   ", "root"} {
			for _, kind := range []string{"soft", "hard"} {
				fmt.Fprintf(&out, "%s %s %s %d\n", who, kind, name, value)
			}
		}
	}
	item("nofile", "open descriptors", l.nofile)
	item("memlock", "locked memory in KiB", (l.memlock+1023)/1024)
	return out.String()
}

// systemd writes a drop-in as systemd.exec(5) and systemd.resource-control(5)
// have it.
func (l *lasting) systemd() string {
	var out strings.Builder
	out.WriteString(l.head("systemd",
		"Save it as /etc/systemd/system/NAME.service.d/90-myriad.conf, NAME being your service's, then:",
		"systemctl daemon-reload && systemctl restart NAME",
		"The kernel's settings are the machine's: `--print sysctl` writes them."))
	out.WriteString("\n[Service]\n")
	if l.nofile > 0 {
		if l.nofile > 1<<20 {
			fmt.Fprintf(&out, "# It takes fs.nr_open = %d or more, which `--print sysctl` sets.\n", l.nofile)
		}
		fmt.Fprintf(&out, "LimitNOFILE=%d\n", l.nofile)
	}
	if l.memlock > 0 {
		fmt.Fprintf(&out, "LimitMEMLOCK=%d\n", l.memlock)
	}
	if l.nofile+l.memlock <= 0 {
		out.WriteString("# No limit: what every service has is enough.\n")
	}
	if l.memory > 0 {
		fmt.Fprintf(&out, "# If MemoryMax= is set, it needs %dM: sockets count too.\n", mebibytes(l.memory))
	}
	if l.uring {
		out.WriteString("# If SystemCallFilter= is set, io_uring needs these too:\n" +
			"#SystemCallFilter=io_uring_setup io_uring_enter io_uring_register\n")
	}
	return out.String()
}
