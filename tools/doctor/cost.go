package doctor

import "github.com/myriad-go/myriad/internal/sock"

// Cost is the resources that a plan needs, by the models that Examine uses.
type Cost struct {
	// Kernel and User are bytes per connection: kernel memory, including Plan.Unread, and process memory. Both
	// include all sides of the plan.
	Kernel int64 `json:"kernel"`
	User   int64 `json:"user"`
	// Base is the memory of the processes in bytes before the first connection.
	Base int64 `json:"base"`
	// Loops is the number of event loops of each server process. If the plan has no server, it is that of the
	// client. It is 0 for models without loops.
	Loops int `json:"loops"`
	// Descriptors is the LimitNOFILE that lets each process hold its share of connections in one table, with an
	// eighth of headroom. It is at most 2,147,483,584.
	Descriptors int64 `json:"descriptors"`
}

// PredictCosts returns the resources that a plan needs. It reads only its arguments. It returns an error if Examine
// does.
func PredictCosts(f *Facts, p Plan) (Cost, error) {
	r, err := Examine(f, p)
	if err != nil {
		return Cost{}, err
	}
	x := newAnalysis(f, r.Plan)
	first := &x.endpoints[0]
	return Cost{
		Kernel: x.kernelBytesPerConn(), User: x.userBytesPerConn(), Base: x.processBytesWithoutConns(), Loops: int(x.loopsPerProcess(first, x.n)),
		Descriptors: min(addEighthAndRoundUp(saturatingAdd(first.connsPerProcessWithMargin(x.n), sock.ReservedDescriptors)), maxDescriptors),
	}, nil
}
