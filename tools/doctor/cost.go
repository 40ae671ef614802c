package doctor

import "github.com/myriad-go/myriad/internal/sock"

// Cost is what a plan takes of a machine, by the models from which Examine predicts walls.
type Cost struct {
	// Kernel and User are bytes for each connection, on all sides of the plan together:
	// of the kernel, with what Plan.Unread has wait there, and of the processes.
	Kernel int64 `json:"kernel"`
	User   int64 `json:"user"`
	// Base is what the processes take before the first connection, in bytes.
	Base int64 `json:"base"`
	// Loops is how many event loops each server process has, or each client where the plan
	// has no server; 0 for a model without.
	Loops int `json:"loops"`
	// Descriptors is the LimitNOFILE with which each process holds its share in one table,
	// with an eighth of room, 2,147,483,584 at most.
	Descriptors int64 `json:"descriptors"`
}

// Costs says what a plan takes. Like Examine it reads nothing else, and fails where that
// does.
func Costs(f *Facts, p Plan) (Cost, error) {
	r, err := Examine(f, p)
	if err != nil {
		return Cost{}, err
	}
	x := newAnalysis(f, r.Plan)
	first := &x.endpoints[0]
	return Cost{
		Kernel: x.kernelBytesPerConn(), User: x.userBytesPerConn(), Base: x.baseBytes(), Loops: int(x.loopsPerProcess(first, x.n)),
		Descriptors: min(addHeadroom(satAdd(first.connsPerProcess(x.n), sock.ReservedDescriptors)), maxDescriptors),
	}, nil
}
