module example.org/bags

go 1.19
