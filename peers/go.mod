module github.com/myriad-go/myriad/peers

go 1.26.0

require (
	github.com/cloudwego/netpoll v0.7.2
	github.com/valyala/fasthttp v1.74.0
)

require (
	github.com/bytedance/gopkg v0.1.1 // indirect
	github.com/cloudwego/gopkg v0.1.4 // indirect
	github.com/klauspost/compress v1.20.0 // indirect
	github.com/molecule-man/go-brrr v1.0.1 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
)
