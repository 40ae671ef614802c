package sock

import "fmt"

// Reserve is how many descriptors are kept for everything that is no
// connection: listeners, pollers, logs, files.
const Reserve = 128

// unlimited is the most connections where the system has no limit to read.
const unlimited = 1 << 20

// MaxConns is the most connections that the limit of descriptors leaves room
// for.
func MaxConns() int {
	soft, _, ok := DescriptorLimit()
	switch {
	case !ok || soft > unlimited+Reserve:
		return unlimited
	case soft <= Reserve:
		return 1
	}
	return int(soft - Reserve)
}

// CheckDescriptors says why this process can't hold so many connections and
// what to do, nil if it can.
func CheckDescriptors(conns int) error {
	soft, hard, ok := DescriptorLimit()
	if !ok || uint64(conns)+Reserve <= soft {
		return nil
	}
	need := conns + Reserve
	return fmt.Errorf("%d connections need %d descriptors, and this process may open %d (RLIMIT_NOFILE, soft %d, hard %d); "+
		"ask for at most %d, or raise the limit: `ulimit -n %d` in the shell that starts it, LimitNOFILE=%d in its systemd unit, "+
		"or nofile in /etc/security/limits.conf", conns, need, soft, soft, hard, MaxConns(), need, need)
}
