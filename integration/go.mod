module github.com/tocsin/tocsin/integration

go 1.26.0

require (
	github.com/tocsin/tocsin/proto v0.0.0
	github.com/tocsin/tocsin/services v0.0.0
)

replace (
	github.com/tocsin/tocsin/proto => ../proto
	github.com/tocsin/tocsin/services => ../services
)
