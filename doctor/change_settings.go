package doctor

// kernelSetting is what is known of a setting of the kernel that a Change can have.
type kernelSetting struct {
	// amount says that it is how much of something there can be, so that
	// more allows for all that less does.
	amount bool
	// own says that each network namespace has its own, which can be written
	// there.
	own bool
	// safe says that Kubernetes lets a pod set it without being told so.
	safe bool
	// least is a value which no plan finds too high: what the kernel begins
	// with where that is the same on each machine, and a small one where it
	// depends on the machine's memory.
	least string
}

// settings are those of the kernel that Changes have, by name. Which ones a
// network namespace has of its own is as Linux 6.18 has it; older ones have
// fewer. Which ones are safe: kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster.
var settings = map[string]kernelSetting{
	"fs.nr_open":                          {amount: true, least: "1048576"},
	"fs.file-max":                         {amount: true, least: "8192"},
	"fs.epoll.max_user_watches":           {amount: true, least: "1024"},
	"kernel.threads-max":                  {amount: true, least: "1024"},
	"kernel.pid_max":                      {amount: true, least: "32768"},
	"kernel.io_uring_disabled":            {least: "0"},
	"vm.max_map_count":                    {amount: true, least: "65530"},
	"net.core.somaxconn":                  {amount: true, own: true, least: "4096"},
	"net.core.netdev_max_backlog":         {amount: true, least: "1000"},
	"net.core.rmem_max":                   {amount: true, least: "212992"},
	"net.core.wmem_max":                   {amount: true, least: "212992"},
	"net.core.rmem_default":               {amount: true, least: "212992"},
	"net.core.wmem_default":               {amount: true, least: "212992"},
	rangeName:                             {amount: true, own: true, safe: true, least: "32768 60999"},
	reservedName:                          {own: true, safe: true},
	"net.ipv4.ip_unprivileged_port_start": {own: true, safe: true},
	"net.ipv4.tcp_max_syn_backlog":        {amount: true, own: true, least: "128"},
	"net.ipv4.tcp_syncookies":             {own: true, safe: true, least: "1"},
	"net.ipv4.tcp_abort_on_overflow":      {own: true, least: "0"},
	"net.ipv4.tcp_rmem":                   {amount: true, own: true},
	"net.ipv4.tcp_wmem":                   {amount: true, own: true},
	"net.ipv4.tcp_mem":                    {amount: true, least: "64 128 256"},
	"net.ipv4.tcp_max_orphans":            {amount: true, least: "4096"},
	"net.ipv4.tcp_max_tw_buckets":         {amount: true, own: true, least: "2048"},
	"net.ipv4.tcp_tw_reuse":               {own: true, least: "2"},
	"net.ipv4.tcp_fin_timeout":            {own: true, least: "60"},
	"net.netfilter.nf_conntrack_max":      {amount: true, least: "1024"},
	"net.nf_conntrack_max":                {amount: true, least: "1024"},
	"net.netfilter.nf_conntrack_buckets":  {amount: true, least: "1024"},
}
