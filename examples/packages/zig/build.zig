// bags.h for Zig 0.14 or later: the library "bags", and its header. Use this directory in a
// clone as the dependency, .bags = .{ .path = "bags/examples/packages/zig" }:
//
//     const bags = b.dependency("bags", .{ .target = target, .optimize = optimize });
//     program.root_module.linkLibrary(bags.artifact("bags"));
const std = @import("std");

pub fn build(b: *std.Build) void {
    const root = "../../..";
    const module = b.createModule(.{
        .target = b.standardTargetOptions(.{}),
        .optimize = b.standardOptimizeOption(.{}),
        .link_libc = true,
    });
    const sources = b.addWriteFiles();
    module.addCSourceFile(.{
        .file = sources.add("bags.c", "#define BAGS_IMPLEMENTATION\n#include \"bags.h\"\n"),
        .flags = &.{"-std=gnu99"},
    });
    module.addIncludePath(b.path(root));
    const library = b.addLibrary(.{ .name = "bags", .linkage = .static, .root_module = module });
    library.installHeader(b.path(root ++ "/bags.h"), "bags.h");
    b.installArtifact(library);
}
